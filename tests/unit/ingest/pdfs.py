"""Makes the PDFs that the tests read: ordinary ones with fpdf2, hostile ones byte by byte."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable

from fpdf import FPDF
from fpdf.enums import AccessPermission, EncryptionMethod

WORDS = "The quick brown fox jumps over the lazy dog while the band plays on and nobody listens to it."


def text_pdf(pages: Iterable[str], *, prepare: Callable[[FPDF], None] | None = None) -> bytes:
    """A PDF with a page for each text."""
    pdf = FPDF()
    pdf.set_font("Helvetica", size=12)
    if prepare is not None:
        prepare(pdf)
    for text in pages:
        pdf.add_page()
        pdf.multi_cell(0, 8, text)
    return bytes(pdf.output())


def numbered_pdf(count: int) -> bytes:
    """``count`` pages that say which page they are."""
    return text_pdf(f"This is page number {number} of the manual. {WORDS}" for number in range(1, count + 1))


def encrypted_pdf(user: str | None, *, method: EncryptionMethod = EncryptionMethod.AES_256) -> bytes:
    """A PDF with an owner password, and a user password unless ``user`` is None."""

    def encrypt(pdf: FPDF) -> None:
        pdf.set_encryption(
            owner_password="owner-secret",
            user_password=user,
            encryption_method=method,
            permissions=AccessPermission.none(),
        )

    return text_pdf([WORDS], prepare=encrypt)


def packed_pdf(texts: list[bytes], *, count: int) -> bytes:
    """A page for each text, ``count`` for their number, and all objects but the texts in a compressed object stream."""
    last = 3 + len(texts)
    kids = b" ".join(b"%d 0 R" % number for number in range(4, last + 1))
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    packed = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, count), font]
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>"
    packed += [page % (last + number) for number in range(1, len(texts) + 1)]
    begins = [sum(len(body) + 1 for body in packed[:index]) for index in range(len(packed))]
    index = b" ".join(b"%d %d" % entry for entry in enumerate(begins, 1)) + b" "
    body = zlib.compress(index + b"\n".join(packed))
    kind = b"<< /Type /ObjStm /N %d /First %d /Filter /FlateDecode /Length %d >>"
    holder = last + len(texts) + 1
    streams = [b"<< /Length %d >>\nstream\n%s\nendstream" % (len(text), text) for text in map(show, texts)]
    streams.append(kind % (len(packed), len(index), len(body)) + b"\nstream\n" + body + b"\nendstream")
    out = bytearray(b"%PDF-1.7\n")
    table = bytes(7) + b"".join(b"\x02" + struct.pack(">IH", holder, at) for at in range(len(packed)))
    for number, content in enumerate(streams, last + 1):
        table += b"\x01" + struct.pack(">IH", len(out), 0)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(out)
    table += b"\x01" + struct.pack(">IH", start, 0)
    out += b"%d 0 obj\n<< /Type /XRef /Size %d /W [1 4 2] /Root 1 0 R /Length %d >>" % (
        holder + 1,
        holder + 2,
        len(table),
    )
    return bytes(out) + b"\nstream\n%s\nendstream\nendobj\nstartxref\n%d\n%%%%EOF\n" % (table, start)


def raw_pdf(objects: list[bytes], *, root: int = 1, trailer: bytes = b"") -> bytes:
    """A PDF of the given objects, numbered from 1, with a correct cross-reference table."""
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    offsets: list[int] = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer\n<< /Size %d /Root %d 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        root,
        trailer,
        start,
    )
    return bytes(out)


def stream(data: bytes, entries: bytes = b"", *, deflate: bool = False) -> bytes:
    """A stream object."""
    if deflate:
        data, entries = zlib.compress(data, 9), entries + b" /Filter /FlateDecode"
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries, data)


FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def content_pdf(
    *contents: bytes, font: bytes = FONT, page: bytes = b"", catalog: bytes = b"", deflate: bool = False
) -> bytes:
    """A PDF whose pages have the given content streams and one font, F1. Object 1 is the catalog, 2 the page tree,
    3 the font; then a page and its content alternate from object 4."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R %s >>" % catalog,
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents)),
        font,
    ]
    for index, content in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> %s >>" % (5 + 2 * index, page)
        )
        objects.append(stream(content, deflate=deflate))
    return raw_pdf(objects)


def show(text: bytes, *, x: int = 72, y: int = 700) -> bytes:
    """Operators that show a line of text."""
    return b"BT /F1 12 Tf %d %d Td (%s) Tj ET\n" % (x, y, text)


def labelled_pdf(prefix: bytes, *, title: bytes = b"") -> bytes:
    """One page whose label begins with ``prefix``; both strings as they stand between parentheses in a PDF."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /PageLabels << /Nums [0 << /P (%s) /S /D >>] >> >>" % prefix,
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        FONT,
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        stream(show(b"An ordinary page of text")),
        b"<< /Title (%s) >>" % title,
    ]
    return raw_pdf(objects, trailer=b"/Info 6 0 R")


def portfolio_pdf(cover: bytes) -> bytes:
    """One page, and another file inside the document."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Names << /EmbeddedFiles << /Names [(inner.pdf) 6 0 R] >> >> >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        FONT,
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        stream(show(cover)),
        b"<< /Type /Filespec /F (inner.pdf) /EF << /F 7 0 R >> >>",
        stream(numbered_pdf(1), b"/Type /EmbeddedFile"),
    ]
    return raw_pdf(objects)
