"""Multipart uploads parsed as a stream: the file goes to its taker piece by piece and is never spooled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.api.problems import invalid_field
from service.errors import InvalidRequest

MAX_FIELDS = 10
MAX_FIELD_BYTES = 64 * 1024
FILE_FIELD = "file"


@dataclass(slots=True)
class _Part:
    name: str = ""
    is_file: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Form:
    """What came beside the file's bytes.

    Attributes:
        fields: Fields by name.
        filename: The file's name as the client sent it.
        declared_type: The file part's own Content-Type.
        has_file: Whether a file part came at all.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    declared_type: str | None = None
    has_file: bool = False


class FormReader:
    """Takes the body of one ``multipart/form-data`` request.

    Args:
        content_type: The request's Content-Type.
        take: Gets the file's bytes, piece by piece.

    Raises:
        InvalidRequest: No boundary, a malformed body, a second file, or too many or too long fields.
    """

    def __init__(self, content_type: str, take: Callable[[bytes], Awaitable[None]]) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary or len(boundary) > 200:
            raise InvalidRequest("Content-Type: multipart/form-data needs a boundary.")
        self.form = Form()
        self._take = take
        self._part = _Part()
        self._file = bytearray()
        self._header: list[bytes] = [b"", b""]
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header_piece(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._header_piece(1, data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._finish,
            },
        )

    async def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidRequest("The multipart body is malformed.") from error
        if self._file:
            data, self._file = bytes(self._file), bytearray()
            await self._take(data)

    def close(self) -> Form:
        """What came, once the body has ended.

        Raises:
            InvalidRequest: The body ended before its closing boundary.
        """
        if not self._ended:
            raise InvalidRequest("The multipart body ends before its closing boundary.")
        return self.form

    def _begin(self) -> None:
        self._part = _Part()

    def _header_piece(self, index: int, data: bytes) -> None:
        self._header[index] += data

    def _header_end(self) -> None:
        name, value = self._header
        # Latin-1 keeps every byte, and parse_options_header takes nothing else: names in it are UTF-8 and decoded then.
        self._part.headers[name.decode("latin-1").strip().lower()] = value.decode("latin-1").strip()
        self._header = [b"", b""]

    def _headers_finished(self) -> None:
        part = self._part
        _, options = parse_options_header(part.headers.get("content-disposition", ""))
        part.name = options.get(b"name", b"").decode("utf-8", "replace")
        part.is_file = part.name == FILE_FIELD
        if part.is_file:
            if self.form.has_file:
                raise invalid_field(FILE_FIELD, "one file can be uploaded at a time")
            self.form.has_file = True
            self.form.filename = options.get(b"filename", b"").decode("utf-8", "replace") or None
            self.form.declared_type = part.headers.get("content-type")
        elif b"filename" in options:
            raise invalid_field(part.name or "?", f"the file belongs into the field {FILE_FIELD!r}")
        elif len(self.form.fields) >= MAX_FIELDS:
            raise InvalidRequest(f"More than {MAX_FIELDS} fields came beside the file.", max_fields=MAX_FIELDS)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part.is_file:
            self._file += memoryview(data)[start:end]
            return
        if len(self._part.data) + end - start > MAX_FIELD_BYTES:
            raise invalid_field(self._part.name, f"is longer than {MAX_FIELD_BYTES} bytes")
        self._part.data += memoryview(data)[start:end]

    def _end(self) -> None:
        part = self._part
        if part.is_file:
            return
        if part.name in self.form.fields:
            raise invalid_field(part.name, "came twice")
        try:
            self.form.fields[part.name] = part.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise invalid_field(part.name, "is not UTF-8") from error

    def _finish(self) -> None:
        self._ended = True
