from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.documents.multipart import Form, FormReader
from service.errors import InvalidRequest

BODY = (
    b'--bound\r\nContent-Disposition: form-data; name="name"\r\n\r\nBericht \xe2\x82\xac\r\n'
    b'--bound\r\ncontent-disposition: form-data; name="file"; filename="a \\"b\\".pdf"\r\nContent-Type: application/pdf\r\n\r\n'
    b"%PDF-1.7\r\n--boun\r\n\r\n--\r\n--bound-\r\n\x00\xff\r\n"
    b'--bound\r\nContent-Disposition: form-data; name="warm"\r\n\r\nfalse\r\n--bound--\r\n'
)
CONTENT = b"%PDF-1.7\r\n--boun\r\n\r\n--\r\n--bound-\r\n\x00\xff"


def read(
    body: bytes, cuts: list[int] | None = None, content_type: str = "multipart/form-data; boundary=bound"
) -> tuple[Form, bytes]:
    taken: list[bytes] = []

    async def take(data: bytes) -> None:
        taken.append(data)

    async def run() -> Form:
        reader = FormReader(content_type, take)
        places = [0, *sorted(cut % (len(body) + 1) for cut in cuts or []), len(body)]
        for start, end in itertools.pairwise(places):
            await reader.feed(body[start:end])
        return reader.close()

    return asyncio.run(run()), b"".join(taken)


@given(st.lists(st.integers(0, len(BODY)), max_size=40))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    form, content = read(BODY, cuts)
    assert content == CONTENT
    assert form.fields == {"name": "Bericht €", "warm": "false"}
    assert (form.declared_type, form.has_file) == ("application/pdf", True)
    assert form.filename is not None
    assert form.filename.endswith(".pdf")


@pytest.mark.parametrize(
    "name", ["Prüfung.pdf", "Отчёт за май.pdf", "報告書.pdf", "naïve €.pdf", "a\u202eb.pdf", "🦆.pdf"]
)
def test_names_in_any_script_are_read(name: str) -> None:
    part = f'--bound\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\nx\r\n--bound--\r\n'
    assert read(part.encode())[0].filename == name


def test_a_name_that_is_no_utf8_is_read_as_far_as_it_is() -> None:
    part = (
        b'--bound\r\nContent-Disposition: form-data; name="file"; filename="Pr\xfcfung.pdf"\r\n\r\nx\r\n--bound--\r\n'
    )
    assert read(part)[0].filename == "Pr\ufffdfung.pdf"


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_anything_else_is_refused_or_read(body: bytes, cuts: list[int]) -> None:
    # Any other error would fail the test.
    with contextlib.suppress(InvalidRequest):
        read(b"--bound\r\n" + body, cuts)


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", f"multipart/form-data; boundary={'x' * 300}"],
)
def test_boundary_is_needed(content_type: str) -> None:
    with pytest.raises(InvalidRequest, match="boundary"):
        read(b"", content_type=content_type)


def test_long_headers_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        read(b"--bound\r\nX: " + b"x" * 10_000 + b"\r\n\r\n\r\n--bound--\r\n")
