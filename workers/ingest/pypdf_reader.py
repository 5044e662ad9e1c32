"""The only pypdf import: what a PDF's encryption is, its form values, and a second reading of pages.

pypdf is 16 times slower than pdfium, so it is imported and opened only for files and pages that need it.
"""

from __future__ import annotations

import io
import mmap
from typing import Any

import pypdf
from pypdf.errors import PyPdfError

from service.errors import DamagedFile, PasswordRequired, UnsupportedEncryption, WrongPassword
from workers.ingest.streams import Mapped

_META_NAMES = {
    "title": "/Title",
    "author": "/Author",
    "subject": "/Subject",
    "keywords": "/Keywords",
    "creator": "/Creator",
    "producer": "/Producer",
    "created": "/CreationDate",
    "modified": "/ModDate",
}
_MAX_FIELDS = 2000


class PypdfFile:
    """A PDF open in pypdf. Pages count from 1. Any method may raise any exception: pypdf meets broken objects late."""

    def __init__(self, data: mmap.mmap | bytes, password: str | None) -> None:
        """Opens and decrypts. Raises PasswordRequired, WrongPassword, UnsupportedEncryption or DamagedFile."""
        self._labels: list[str] | None = None
        stream: Any = io.BytesIO(data) if isinstance(data, bytes) else Mapped(data)
        try:
            self._reader = pypdf.PdfReader(stream, strict=False)
            self.encrypted = bool(self._reader.is_encrypted)
        except NotImplementedError as problem:
            # A /Filter but /Standard, any /SubFilter, a /V outside 1 to 5, or a crypt filter that is neither RC4 nor AES.
            raise UnsupportedEncryption("The document's security handler is not one that can be read.") from problem
        except MemoryError:
            raise
        except Exception as problem:
            if "security handler" in str(problem).lower():
                raise UnsupportedEncryption("The document's security handler is not one that can be read.") from problem
            raise DamagedFile("No reader finds the document's pages.") from problem
        if self.encrypted:
            self._decrypt(password)
        try:
            self.pages = len(self._reader.pages)
        except MemoryError:
            raise
        except Exception as problem:
            raise DamagedFile("No reader finds the document's pages.") from problem

    def _decrypt(self, password: str | None) -> None:
        tried = ["", password] if password else [""]
        for word in tried:
            try:
                if self._reader.decrypt(word):
                    return
            except (PyPdfError, ValueError, TypeError, KeyError, AttributeError) as problem:
                raise UnsupportedEncryption("The document's encryption dictionary is broken.") from problem
        if password:
            raise WrongPassword("The password does not open the document.")
        raise PasswordRequired("The document is encrypted and opens only with a password.")

    def metadata(self) -> dict[str, str]:
        """The information dictionary's entries that are text."""
        information = self._reader.metadata or {}
        return {key: str(information[name]) for key, name in _META_NAMES.items() if name in information}

    def label(self, number: int) -> str | None:
        """The page's printed label, None where the document has none."""
        if self._labels is None:
            # pypdf makes the whole list at once, so it is asked once.
            has_labels = "/PageLabels" in self._reader.root_object
            self._labels = self._reader.page_labels if has_labels else []
        return self._labels[number - 1] if number <= len(self._labels) else None

    def text(self, number: int) -> str:
        """The page's text in pypdf's plain mode."""
        return self._reader.pages[number - 1].extract_text()

    def field_values(self, number: int) -> list[tuple[str, str]]:
        """Name and value of the page's filled text and choice fields, in the file's order; passwords left out."""
        found: list[tuple[str, str]] = []
        annotations: Any = self._reader.pages[number - 1].get("/Annots") or []
        for reference in list(annotations.get_object() if hasattr(annotations, "get_object") else annotations)[
            :_MAX_FIELDS
        ]:
            widget = reference.get_object()
            if widget is None or widget.get("/Subtype") != "/Widget" or int(widget.get("/F", 0)) & 2:
                continue
            kind, value, name, flags = _inherited(widget)
            if kind in {"/Tx", "/Ch"} and value is not None and not flags & 1 << 13:
                values = value if isinstance(value, list) else [value]
                shown = ", ".join(str(part) for part in values).strip()
                if shown:
                    found.append((name, shown))
        return found

    def decrypted_copy(self) -> bytes:
        """The document without encryption, for a reader that does not accept its password."""
        out = io.BytesIO()
        pypdf.PdfWriter(clone_from=self._reader).write(out)
        return out.getvalue()


def _inherited(widget: Any) -> tuple[str | None, Any, str, int]:
    """A field's type, value, full name and flags, which its ancestors may hold (ISO 32000-2, 12.7.4)."""
    kind: str | None = None
    value: Any = None
    flags = 0
    names: list[str] = []
    node: Any = widget
    for _ in range(16):
        kind = kind or node.get("/FT")
        value = node.get("/V") if value is None else value
        flags = flags or int(node.get("/Ff", 0))
        if "/T" in node:
            names.append(str(node["/T"]))
        if "/Parent" not in node:
            break
        node = node["/Parent"].get_object()
    return kind, value.get_object() if hasattr(value, "get_object") else value, ".".join(reversed(names)), flags
