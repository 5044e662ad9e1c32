"""Bad files and bad luck: what an uploader sees of each, and that the service goes on."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.settings import Settings
from service.store import blobs as blob_store
from tests.conftest import MakeSettings
from tests.fixtures.installation import pdf
from tests.integration.api.conftest import ReadNext, problem
from tests.integration.api.test_documents import blobs
from tests.unit.ingest.pdfs import FONT, content_pdf, encrypted_pdf, numbered_pdf, raw_pdf, show, stream

MIB = 1024 * 1024
CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> >>"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Reading does not depend on the kind of database."""
    return sqlite_url


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str) -> Settings:
    """Limits small enough that a bomb ends in seconds."""
    reading = {"page_seconds": 1.0, "max_memory_bytes": 250 * MIB, "max_children": 1}
    return make_settings(database={"url": database_url}, reading=reading)


def cycle() -> bytes:
    kids = b"<< /Type /Pages /Kids [%d 0 R] /Count 1000 /Parent %d 0 R >>"
    return raw_pdf([CATALOG, kids % (3, 3), kids % (2, 2)])


def twenty_thousand_pages() -> bytes:
    kids = b" ".join(b"%d 0 R" % number for number in range(3, 20_003))
    pages = b"<< /Type /Pages /Kids [%s] /Count 20000 >>" % kids
    return raw_pdf([CATALOG, pages, *[b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"] * 20_000])


def dynamic_form() -> bytes:
    waiting = show(b"Please wait... If this message is not eventually replaced, your viewer cannot show the form.")
    form = stream(b"<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'><template/></xdp:xdp>")
    xfa = b"/AcroForm << /Fields [] /XFA 6 0 R >> /NeedsRendering true"
    catalog = CATALOG.replace(b">>", xfa + b" >>")
    return raw_pdf([catalog, b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>", FONT, PAGE, stream(waiting), form])


def font_without_map() -> bytes:
    font = (
        b"<< /Type /Font /Subtype /Type0 /BaseFont /AAAAAA+Lost /Encoding /Identity-H /DescendantFonts ["
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /AAAAAA+Lost /CIDSystemInfo"
        b" << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>] >>"
    )
    glyphs = b"".join(b"%04X" % (3 + (index * 7) % 60) for index in range(80))
    return content_pdf(b"BT /F1 12 Tf 72 700 Td <%s> Tj ET" % glyphs, font=font)


def unknown_security_handler() -> bytes:
    entries = b"/Encrypt << /Filter /Acme.Vault /V 9 /R 9 >> /ID [<00> <00>]"
    objects = [CATALOG, b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>", FONT, PAGE, stream(show(b"Locked words here"))]
    return raw_pdf(objects, trailer=entries)


def bomb() -> bytes:
    return content_pdf(b"BT /F1 1 Tf " + b"(a) Tj " * (80 * MIB // 7), deflate=True)


def million_operators() -> bytes:
    return content_pdf(b"BT /F1 1 Tf " + b"(a) Tj " * 1_000_000, deflate=True)


@pytest.mark.parametrize(
    ("make", "codes"),
    [
        (lambda: numbered_pdf(3)[:300], {"damaged_file"}),
        (cycle, {"damaged_file", "no_pages", "no_text_layer"}),
        (twenty_thousand_pages, {"too_many_pages"}),
        (lambda: raw_pdf([CATALOG, b"<< /Type /Pages /Kids [] /Count 0 >>"]), {"no_pages"}),
        # On a fast machine it is read to the end and has more text than a page may have.
        (bomb, {"no_text_layer", "too_much_text", "reading_out_of_memory", "reading_timed_out"}),
        (million_operators, {"no_text_layer", "too_much_text", "reading_out_of_memory", "reading_timed_out"}),
        (dynamic_form, {"dynamic_form"}),
        (unknown_security_handler, {"unsupported_encryption"}),
        (lambda: encrypted_pdf("secret"), {"password_required"}),
    ],
    ids=[
        "truncated",
        "cycle",
        "20,000 pages",
        "no pages",
        "flate bomb",
        "million operators",
        "XFA only",
        "unknown handler",
        "encrypted",
    ],
)
def test_a_bad_file_shows_its_code_and_costs_nobody_else(
    client: TestClient, read: ReadNext, make: Any, codes: set[str]
) -> None:
    content = make()
    sent = client.post("/v1/documents", content=content, params={"ocr": "never", "warm": "false"})
    assert sent.status_code == 202, sent.text
    assert read() == sent.json()["id"]
    found = client.get(sent.headers["location"]).json()
    assert found["status"] == "failed"
    assert found["error"]["code"] in codes
    assert found["error"]["detail"]
    assert (found["tokens"], found["tier"]) == (None, None)
    # The next one is read as ever.
    good = client.post("/v1/documents", content=numbered_pdf(2), params={"warm": "false"})
    assert read() == good.json()["id"]
    assert client.get(good.headers["location"]).json()["status"] == "ready"


def test_a_wrong_password_is_told_from_a_missing_one(client: TestClient, read: ReadNext) -> None:
    for password, code in (("wrong", "wrong_password"), ("secret", None)):
        sent = client.post("/v1/documents", content=encrypted_pdf("secret"), params={"password": password})
        assert read() == sent.json()["id"]
        error = client.get(sent.headers["location"]).json()["error"]
        assert (error["code"] if error else None) == code


def test_text_in_a_font_without_a_map_is_noted_on_its_page(client: TestClient, read: ReadNext) -> None:
    sent = client.post("/v1/documents", content=font_without_map(), params={"ocr": "never", "warm": "false"})
    assert read() == sent.json()["id"]
    found = client.get(sent.headers["location"]).json()
    assert (found["status"], [(p["page"], p["code"]) for p in found["page_problems"]]) == (
        "ready",
        [(1, "unreadable_text")],
    )
    assert found["page_problems"][0]["detail"]


def test_an_attachment_is_no_part_of_the_document(client: TestClient, read: ReadNext) -> None:
    names = b"/Names << /EmbeddedFiles << /Names [(evil.pdf) 6 0 R] >> >> >>"
    objects = [CATALOG.replace(b">>", names), b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>", FONT, PAGE]
    objects += [stream(show(b"The letter itself")), b"<< /Type /Filespec /F (evil.pdf) /EF << /F 7 0 R >> >>"]
    objects += [stream(b"attached words", b"/Type /EmbeddedFile")]
    sent = client.post("/v1/documents", content=raw_pdf(objects))
    assert read() == sent.json()["id"]
    pages = client.get(sent.headers["location"] + "/pages").json()["data"]
    assert [page["text"] for page in pages] == ["The letter itself"]


def test_the_kind_is_told_by_content_whatever_the_name_says(client: TestClient) -> None:
    sent = client.post("/v1/documents", files={"file": ("notes.txt", pdf(), "text/plain")})
    assert (sent.status_code, sent.json()["content_type"]) == (202, "application/pdf")
    sent = client.post("/v1/documents", files={"file": ("notes.pdf", b"Words.", "application/octet-stream")})
    assert (sent.status_code, sent.json()["content_type"]) == (202, "text/plain")
    problem(client.post("/v1/documents", files={"file": ("notes.pdf", b"Words.")}), 415, "unsupported_content")


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/cron.d/x.pdf",
        "C:\\Windows\\x.pdf",
        "a\x1b[31m\x07b.pdf",
        "\u202efdp.exe",
        "..",
        "x" * 900 + ".pdf",
    ],
)
def test_a_name_is_shown_only_and_never_a_path(client: TestClient, settings: Settings, name: str) -> None:
    sent = client.post("/v1/documents", files={"file": ("plain.pdf", pdf())}, data={"name": name})
    shown = sent.json()["name"] or ""
    assert sent.status_code == 202
    assert len(shown) <= 255
    assert not re.search(r"[/\\\x00-\x1f\x7f\u202a-\u202e]", shown)
    root = (settings.data_dir / "blobs").resolve()
    assert [path.resolve().is_relative_to(root) for path in blobs(settings)] == [True]
    disposition = client.get(sent.headers["location"] + "/content").headers["content-disposition"]
    assert re.fullmatch(r"attachment; filename[\x20-\x7e]+", disposition)


@pytest.mark.parametrize("moment", ["write", "sync", "rename"])
def test_a_disk_that_fills_up_in_the_middle(
    client: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_: Any) -> None:
        raise full

    class Full:
        """A file on a disk with room for 256 KiB."""

        def __init__(self, file: Any) -> None:
            self._file = file
            self._room = 256 * 1024

        def write(self, data: memoryview) -> int:
            if not self._room:
                raise full
            written = self._file.write(data[: self._room])
            self._room -= written
            return written

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    with monkeypatch.context() as patched:
        if moment == "write":
            opened: Any = os.fdopen

            def fdopen(*args: Any, **options: Any) -> Full:
                return Full(opened(*args, **options))

            patched.setattr(blob_store.os, "fdopen", fdopen)
        elif moment == "sync":
            patched.setattr(blob_store.os, "fsync", fail)
        else:
            patched.setattr(Path, "replace", fail)
        content = pdf() + bytes(MIB)
        problem(client.post("/v1/documents", content=content), 507, "storage_full")
        problem(client.post("/v1/documents", files={"file": ("x.pdf", content)}), 507, "storage_full")
    assert blobs(settings) == []
    assert client.get("/v1/documents").json()["data"] == []
    # Nothing has to be started again once there is room.
    assert client.post("/v1/documents", content=content).status_code == 202


def test_the_same_file_sent_twice_at_once_is_read_once(client: TestClient, read: ReadNext, settings: Settings) -> None:
    content = numbered_pdf(2)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.post("/v1/documents", content=content))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 202]
    assert {answer.json()["id"] for answer in answers} == {read()}
    assert len(blobs(settings)) == 1
    with pytest.raises(AssertionError):
        read()
