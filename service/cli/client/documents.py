"""``longread upload``, ``count``, ``documents`` and ``delete``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import typer

from service.cli.client import render
from service.cli.client.http import Api
from service.cli.client.options import (
    DEFAULT_TIMEOUT_SECONDS,
    KeyOption,
    LimitOption,
    TimeoutOption,
    UrlOption,
    WaitOption,
    connect,
)
from service.cli.client.waiting import progress_bars, wait_for_document
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, err_console, finish

PasswordOption = Annotated[str | None, typer.Option(help="Opens an encrypted document.")]
_COUNT_SECONDS = 180.0
OcrOption = Annotated[
    Literal["auto", "never", "force"] | None, typer.Option(help="When pages are recognised from their picture.")
]


def upload(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    *,
    name: Annotated[str | None, typer.Option(help="What to call it; left out: the file's name.")] = None,
    password: PasswordOption = None,
    ocr: OcrOption = None,
    replaces: Annotated[str | None, typer.Option(metavar="ID", help="The document this is a new version of.")] = None,
    warm: Annotated[bool, typer.Option("--warm/--no-warm", help="Compute its prefix before anyone asks.")] = True,
    shared: Annotated[
        bool, typer.Option("--shared", help="Let its computed prefix serve every tenant that marked it so.")
    ] = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_SECONDS,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Upload a document and wait until it is read. The same file twice is the same document."""
    with connect(url, api_key) as api:
        document = send_file(
            api, file, name=name, password=password, ocr=ocr, replaces=replaces, warm=warm, shared=shared
        )
        if wait:
            document = wait_for_document(api, document["id"], timeout_seconds=timeout)
    finish(document, render.document(document), failure_of(document), json=json)


def count(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    *,
    password: PasswordOption = None,
    ocr: OcrOption = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds to wait for it.")] = _COUNT_SECONDS,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Count a document's pages and tokens and say its tier, without keeping it."""
    with connect(url, api_key) as api, _sending(file) as part:
        given = {"password": password, "ocr": ocr}
        found = api.send_file(
            "/v1/documents/estimate",
            files={"file": part},
            data={key: value for key, value in given.items() if value is not None},
            wait_seconds=timeout,
        )
    finish(found, render.estimate(found), None, json=json)


def documents(
    *,
    limit: LimitOption = 50,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """List documents, newest first."""
    with connect(url, api_key) as api:
        found = api.listed("/v1/documents", limit=limit)
    finish({"object": "list", "data": found}, render.documents(found), None, json=json)


def delete(
    document: Annotated[str, typer.Argument(metavar="ID")],
    *,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a document with its pages, questions and answers."""
    with connect(url, api_key) as api:
        api.delete(f"/v1/documents/{document}")
    finish({"id": document, "deleted": True}, f"{document} is deleted.", None, json=json)


def send_file(
    api: Api,
    file: Path,
    *,
    name: str | None = None,
    password: str | None = None,
    ocr: str | None = None,
    replaces: str | None = None,
    warm: bool = True,
    shared: bool = False,
) -> dict[str, Any]:
    """Upload a file with a progress bar.

    Raises:
        CommandFailed: The file cannot be read, it is refused, or the service cannot be reached.
    """
    given = {
        "name": name,
        "password": password,
        "ocr": ocr,
        "replaces": replaces,
        "warm": "true" if warm else "false",
        "shared": "true" if shared else None,
    }
    with _sending(file) as part:
        document, is_new = api.upload(
            "/v1/documents",
            files={"file": part},
            data={key: value for key, value in given.items() if value is not None},
        )
    if not is_new:
        err_console().print(f"[dim]{document['id']} was uploaded before.[/]")
    return document


def document_id(api: Api, given: str, *, timeout_seconds: float) -> str:
    """The document that an argument names: its id, or a file that is uploaded and read first.

    Raises:
        CommandFailed: There is no such file, or it cannot be read.
    """
    if given.startswith("doc_") and not Path(given).exists():
        return given
    if not Path(given).is_file():
        raise CommandFailed(
            Exit.USAGE, f"{given} is neither a document's id (doc_…) nor a file here.", code="no_such_document"
        )
    document = send_file(api, Path(given))
    document = wait_for_document(api, document["id"], timeout_seconds=timeout_seconds)
    failure = failure_of(document)
    if failure:
        raise failure
    return document["id"]


def failure_of(document: dict[str, Any]) -> CommandFailed | None:
    """The end of a command whose document could not be read."""
    if document["status"] != "failed":
        return None
    error = document.get("error") or {"code": "unreadable", "detail": "The document could not be read."}
    return CommandFailed(Exit.JOB_FAILED, f"{error['detail']} ({error['code']})", code=error["code"], payload=document)


@contextlib.contextmanager
def _sending(file: Path) -> Generator[tuple[str, _Counted]]:
    """A file as a part of a form, with a progress bar.

    Raises:
        CommandFailed: It cannot be read.
    """
    # File names are bytes; the service takes text.
    name = os.fsencode(file.name).decode(errors="replace")
    try:
        with file.open("rb") as source, progress_bars() as bars:
            task = bars.add_task("uploading", total=file.stat().st_size, note=name)
            # The client declares the type that the name suggests, so that a renamed file is refused at once.
            yield name, _Counted(source, partial(bars.advance, task))
    except OSError as error:
        raise CommandFailed(Exit.FAILED, f"{file}: {error.strerror}.", code="unreadable_file") from error


class _Counted:
    """A file that tells how much of it was read. ``fileno`` lets the client know its length."""

    def __init__(self, source: BinaryIO, advance: Callable[[int], None]) -> None:
        self._source = source
        self._advance = advance

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._advance(len(data))
        return data

    def fileno(self) -> int:
        return self._source.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()
