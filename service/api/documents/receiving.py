"""Takes an upload from the socket to the disk: hashed and counted on the way, never held in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from service.api.documents.multipart import Form, FormReader
from service.api.documents.naming import clean_name, name_from_header
from service.api.documents.schemas import EstimateOptions, UploadOptions
from service.api.problems import invalid_field, invalid_values
from service.domain.content import PDF, content_type_of
from service.errors import EmptyFile, FileTooLarge, UnsupportedContent, UploadStalled
from service.store.blobs import Incoming

WRITE_BYTES = 256 * 1024
"""Bytes gathered before a thread is asked to hash and write them: below this the hand-over costs more than the work."""
IDLE_SECONDS = 60.0
"""Longest pause between two pieces of a body."""
_FORM_BYTES = 1024 * 1024
"""How much longer than its file a multipart body may be: fields, headers and boundaries."""


Options = TypeVar("Options", bound=EstimateOptions)


@dataclass(frozen=True, slots=True)
class Upload(Generic[Options]):
    """A file that has arrived whole.

    Attributes:
        options: What the client said about it.
        name: What to call it, cleaned.
        content_type: Told from its bytes.
    """

    options: Options
    name: str | None
    content_type: str


def refuse_declared(request: Request, *, max_bytes: int) -> None:
    """Refuse a body whose Content-Length says that it is too long, before a byte of it is read.

    Raises:
        FileTooLarge: It is.
    """
    declared = request.headers.get("content-length", "")
    room = max_bytes + (_FORM_BYTES if _is_form(request) else 0)
    if declared.isdigit() and int(declared) > room:
        raise FileTooLarge(f"The request announces {declared} bytes; {max_bytes} are accepted.", max_bytes=max_bytes)


async def receive(request: Request, incoming: Incoming, *, max_bytes: int, options: type[Options]) -> Upload[Options]:
    """Read the body into ``incoming``, with its options.

    Raises:
        ClientDisconnect: The client went away.
        FileTooLarge: The file is longer than it may be, whatever Content-Length says.
        EmptyFile: It has no bytes.
        UnsupportedContent: It is of no kind that can be read.
        UploadStalled: It stopped arriving.
        InvalidRequest: The multipart body or an option is not valid.
    """
    sink = _Sink(incoming)
    form = Form(
        filename=name_from_header(request.headers.get("x-filename")),
        declared_type=request.headers.get("content-type"),
        has_file=True,
    )
    if _is_form(request):
        reader = FormReader(request.headers["content-type"], sink.take)
        received = 0
        async for chunk in _pieces(request):
            received += len(chunk)
            if received > max_bytes + _FORM_BYTES:
                raise FileTooLarge(f"The file is larger than {max_bytes} bytes.", max_bytes=max_bytes)
            await reader.feed(chunk)
        form = reader.close()
    else:
        async for chunk in _pieces(request):
            await sink.take(chunk)
    await sink.flush()
    if not form.has_file:
        raise invalid_field("file", "is missing: send the document in the multipart field 'file', or as the raw body")
    if incoming.bytes == 0:
        raise EmptyFile("The file has no bytes.")
    given = _options({**request.query_params, **form.fields}, options)
    content_type = content_type_of(incoming.head)
    declared = (form.declared_type or "").partition(";")[0].strip().lower()
    if content_type is None or (declared == PDF and content_type != PDF):
        raise UnsupportedContent(
            "The file is declared as PDF, but no %PDF- stands in its first 1,024 bytes."
            if declared == PDF
            else "The file is neither PDF, DOCX, HTML nor text.",
            declared=declared or None,
        )
    name = clean_name(given.name) if isinstance(given, UploadOptions) else None
    return Upload(given, name or clean_name(form.filename), content_type)


class _Sink:
    """Gathers small pieces into writes that are worth a thread."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._pieces: list[bytes] = []
        self._size = 0

    async def take(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= WRITE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if data:
            await run_in_threadpool(self._incoming.write, data)


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                piece = await anext(stream, None)
        except TimeoutError as error:
            raise UploadStalled(f"No byte arrived for {IDLE_SECONDS:g} seconds; nothing was kept.") from error
        if piece is None:
            return
        yield piece


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


def _options(given: Mapping[str, str], kind: type[Options]) -> Options:
    values: dict[str, Any] = dict(given)
    if "metadata" in values:
        try:
            values["metadata"] = json.loads(values["metadata"] or "{}")
        except (ValueError, RecursionError) as error:
            raise invalid_field("metadata", "is not JSON") from error
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise invalid_values(error) from error
