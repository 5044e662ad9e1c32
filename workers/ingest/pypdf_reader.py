"""The only pypdf import: what a PDF's encryption is, and a second reading of pages.

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

    def decrypted_copy(self) -> bytes:
        """The document without encryption, for a reader that does not accept its password."""
        out = io.BytesIO()
        pypdf.PdfWriter(clone_from=self._reader).write(out)
        return out.getvalue()
