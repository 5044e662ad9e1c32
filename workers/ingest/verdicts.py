"""From the code that a child reports to the error it stands for; unknown codes are not believed."""

from __future__ import annotations

from service import errors

_ERRORS: dict[str, type[errors.DocumentError]] = {
    kind.code: kind
    for kind in (
        errors.DamagedFile,
        errors.NoPages,
        errors.PasswordRequired,
        errors.WrongPassword,
        errors.UnsupportedEncryption,
        errors.TooManyPages,
        errors.TooMuchText,
        errors.NoTextLayer,
        errors.ReadingOutOfMemory,
        errors.ReaderCrashed,
    )
}


class ReaderNotInstalled(RuntimeError):
    """A reader's library cannot be imported: the installation is at fault, not the document."""


def error_from_code(code: str, detail: str) -> errors.DocumentError | ReaderNotInstalled:
    """The error for a child's ``failed`` frame; a code that no child has is a crash."""
    if code == "not_installed":
        return ReaderNotInstalled(detail)
    kind = _ERRORS.get(code, errors.ReaderCrashed)
    return kind(detail or kind.title() + ".")
