"""What stands on a page beside its content stream, as pdfium tells it: filled form fields, typed notes, comments.

Part of the pypdfium2 adapter (``workers.ingest.pdfium_reader``); for use in a reading child only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pypdfium2_raw as c

# Annotations that show no text of their own; all others may have an appearance with text.
_UNSEEN = frozenset({c.FPDF_ANNOT_LINK, c.FPDF_ANNOT_POPUP})
# Marks on the text, whose words a viewer shows beside the page when they are pointed at.
_COMMENTS = frozenset(
    {
        c.FPDF_ANNOT_TEXT,
        c.FPDF_ANNOT_HIGHLIGHT,
        c.FPDF_ANNOT_UNDERLINE,
        c.FPDF_ANNOT_SQUIGGLY,
        c.FPDF_ANNOT_STRIKEOUT,
        c.FPDF_ANNOT_CARET,
        c.FPDF_ANNOT_STAMP,
        c.FPDF_ANNOT_LINE,
        c.FPDF_ANNOT_SQUARE,
        c.FPDF_ANNOT_CIRCLE,
        c.FPDF_ANNOT_INK,
    }
)
_TYPED = frozenset({c.FPDF_FORMFIELD_TEXTFIELD, c.FPDF_FORMFIELD_COMBOBOX, c.FPDF_FORMFIELD_LISTBOX})
_TICKED = frozenset({c.FPDF_FORMFIELD_CHECKBOX, c.FPDF_FORMFIELD_RADIOBUTTON})
_PASSWORD = 1 << 13  # ISO 32000-2, table 230.
_OUT_OF_SIGHT = c.FPDF_ANNOT_FLAG_HIDDEN | c.FPDF_ANNOT_FLAG_NOVIEW
_MAX_ANNOTATIONS = 20_000
_MAX_NAME_CHARS = 200
_MAX_TEXT_BYTES = 64 * 1024


@dataclass
class Annotations:
    """A page's annotations that are in sight.

    Attributes:
        drawn: Whether some may have an appearance with text.
        fields: Filled fields, a line each in the file's order: name, colon, value.
        notes: Texts typed onto the page, which may have been drawn or not.
        comments: Texts of notes and marks, which no viewer draws, each with its author's name.
    """

    drawn: bool = False
    fields: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    comments: list[str] = field(default_factory=list[str])


def annotations_of(page: Any, form: Any | None) -> Annotations:
    """Looks at the page's annotations. ``form`` is the document's form environment, None where it has no form.

    A field that is listed by name is hidden, so that drawing the page does not repeat its value without its name at
    the page's end; where the file formats the value as it draws it (1234.5 as $1,234.50), both are kept.
    """
    found = Annotations()
    for index in range(min(int(c.FPDFPage_GetAnnotCount(page)), _MAX_ANNOTATIONS)):
        annotation = c.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        subtype = int(c.FPDFAnnot_GetSubtype(annotation))
        flags = 0 if subtype in _UNSEEN else int(c.FPDFAnnot_GetFlags(annotation))
        if subtype not in _UNSEEN and not flags & _OUT_OF_SIGHT:
            if subtype == c.FPDF_ANNOT_WIDGET and form is not None:
                line = _field_line(form, annotation)
                if line:
                    found.fields.append(line)
                    if not _is_formatted(form, annotation):
                        c.FPDFAnnot_SetFlags(annotation, flags | c.FPDF_ANNOT_FLAG_HIDDEN)
            elif subtype == c.FPDF_ANNOT_FREETEXT:
                found.notes.append(_entry(annotation, b"Contents"))
            elif subtype in _COMMENTS:
                found.comments.append(_comment_line(annotation))
            found.drawn = True
        c.FPDFPage_CloseAnnot(annotation)
    found.notes = [note for note in found.notes if note.strip()]
    found.comments = [comment for comment in found.comments if comment]
    return found


def _field_line(form: Any, annotation: Any) -> str:
    """``name: value`` of a filled field, the name as its author explains it where they do; empty for all others."""
    kind = int(c.FPDFAnnot_GetFormFieldType(form, annotation))
    if kind in _TYPED:
        secret = int(c.FPDFAnnot_GetFormFieldFlags(form, annotation)) & _PASSWORD
        value = "" if secret else _typed_value(form, annotation)
    elif kind in _TICKED and c.FPDFAnnot_IsChecked(form, annotation):
        value = _text(c.FPDFAnnot_GetFormFieldExportValue, form, annotation) or "Yes"
    else:
        value = ""
    if not value.strip():
        return ""
    name = _text(c.FPDFAnnot_GetFormFieldAlternateName, form, annotation).strip()
    name = name or _text(c.FPDFAnnot_GetFormFieldName, form, annotation)
    return ": ".join(part for part in (" ".join(name.split())[:_MAX_NAME_CHARS], value.strip()) if part)


def _typed_value(form: Any, annotation: Any) -> str:
    chosen = [
        _text(c.FPDFAnnot_GetOptionLabel, form, annotation, index)
        for index in range(max(0, min(int(c.FPDFAnnot_GetOptionCount(form, annotation)), _MAX_ANNOTATIONS)))
        if c.FPDFAnnot_IsOptionSelected(form, annotation, index)
    ]
    return ", ".join(chosen) or _text(c.FPDFAnnot_GetFormFieldValue, form, annotation)


def _is_formatted(form: Any, annotation: Any) -> bool:
    script = _text(c.FPDFAnnot_GetFormAdditionalActionJavaScript, form, annotation, c.FPDF_ANNOT_AACTION_FORMAT)
    return bool(script)


def _comment_line(annotation: Any) -> str:
    text = _entry(annotation, b"Contents").strip()
    author = " ".join(_entry(annotation, b"T").split())[:_MAX_NAME_CHARS]
    return f"Comment{f' by {author}' if author else ''}: {text}" if text else ""


def _entry(annotation: Any, key: bytes) -> str:
    return _text(c.FPDFAnnot_GetStringValue, annotation, key)


def _text(ask: Callable[..., Any], *arguments: Any) -> str:
    """What a function of pdfium's writes into a buffer of UTF-16, whose size in bytes it returns, the end included."""
    size = int(ask(*arguments, None, 0))
    if not 2 < size <= _MAX_TEXT_BYTES:
        return ""
    buffer = (c.FPDF_WCHAR * (size // 2))()
    ask(*arguments, buffer, size)
    return bytes(buffer)[: size - 2].decode("utf-16-le", "ignore")
