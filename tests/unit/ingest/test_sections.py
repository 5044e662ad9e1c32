from __future__ import annotations

import io
import zipfile

import docx
import pytest
from docx.oxml.ns import qn

from service.domain.content import DOCX, HTML, MARKDOWN, TEXT
from service.errors import DamagedFile, TooManyPages
from tests.unit.ingest.conftest import LIMITS, Read
from workers.ingest import docx_reader
from workers.ingest.reading import ReadLimits
from workers.ingest.sections import MAX_SECTION_CHARS, Section, split_long
from workers.ingest.text_reader import decode, read_markdown


def word(build: object = None) -> bytes:
    document = docx.Document()
    document.core_properties.title = "Ducks"
    document.add_paragraph("Before any heading.")
    document.add_heading("Numbers", 1)
    table = document.add_table(rows=2, cols=2)
    for row, cells in enumerate([("Year", "Fresh water"), ("2019", "120")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    document.add_paragraph("After the table.")
    document.add_heading("Outlook", 2)
    document.add_paragraph("More ducks.")
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def replaced(data: bytes, name: str, change: bytes) -> bytes:
    """The package with one part's ``More ducks.`` paragraph text replaced by other XML."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            body = old.read(entry)
            new.writestr(
                entry, body.replace(b"<w:t>More ducks.</w:t></w:r>", change) if entry.filename == name else body
            )
    return out.getvalue()


def test_word_documents_by_heading_with_tables_as_rows(read: Read):
    outcome = read(word())
    assert [(page.label, page.text) for page in outcome.pages] == [
        (None, "Before any heading."),
        ("Numbers", "Numbers\n\nYear  Fresh water\n2019  120\n\nAfter the table."),
        ("Outlook", "Outlook\nMore ducks."),
    ]
    assert outcome.opened is not None
    assert outcome.opened.metadata["title"] == "Ducks"


def test_word_shows_insertions_and_controls_and_hides_deletions(read: Read):
    change = (
        b"<w:t>Kept</w:t></w:r><w:ins w:id='1' w:author='a'><w:r><w:t> inserted</w:t></w:r></w:ins>"
        b"<w:del w:id='2' w:author='a'><w:r><w:delText> deleted</w:delText></w:r></w:del>"
        b"<w:sdt><w:sdtContent><w:r><w:t> controlled</w:t></w:r></w:sdtContent></w:sdt>"
    )
    assert read(replaced(word(), "word/document.xml", change)).texts[-1] == "Outlook\nKept inserted controlled"


@pytest.mark.parametrize(
    "kind",
    [
        b"application/vnd.ms-word.document.macroEnabled.main+xml",
        b"application/vnd.openxmlformats-officedocument.wordprocessingml.template.main+xml",
    ],
)
def test_word_documents_with_macros_and_templates_are_read(read: Read, kind: bytes):
    usual = b"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(word())) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, old.read(entry).replace(usual, kind))
    assert read(out.getvalue(), content_type=DOCX).texts[0] == "Before any heading."


def test_formulas_and_known_symbols_of_word_documents_are_read(read: Read):
    math = b"http://schemas.openxmlformats.org/officeDocument/2006/math"
    run = b"<m:r><m:t>%s</m:t></m:r>"
    formula = (
        b"<m:oMath xmlns:m='%s'><m:f><m:num>%s</m:num><m:den>%s</m:den></m:f>%s<m:rad><m:deg/><m:e>%s</m:e></m:rad></m:oMath>"
    ) % (math, run % b"a+b", run % b"2", run % b"=", run % b"y")
    symbols = b"<w:r><w:sym w:font='Wingdings' w:char='F0FC'/><w:sym w:font='Wingdings' w:char='F001'/></w:r>"
    outcome = read(replaced(word(), "word/document.xml", b"</w:r>" + formula + symbols))
    assert outcome.texts[-1] == "Outlook\n(a+b)/2=√y✓"


def test_deleted_rows_of_word_tables_are_not_read(read: Read):
    document = docx.Document(io.BytesIO(word()))
    deleted = document.tables[0].rows[1]._tr.get_or_add_trPr()  # pyright: ignore[reportPrivateUsage]
    deleted.append(deleted.makeelement(qn("w:del"), {qn("w:id"): "1", qn("w:author"): "a"}))
    out = io.BytesIO()
    document.save(out)
    assert read(out.getvalue()).texts[1] == "Numbers\n\nYear  Fresh water\n\nAfter the table."


@pytest.mark.parametrize("data", [b"PK\x03\x04 word/ broken", word()[:2000]])
def test_a_broken_word_document_is_damaged(read: Read, data: bytes):
    with pytest.raises(DamagedFile):
        read(data, content_type=DOCX)


def test_a_spreadsheet_called_a_word_document_is_damaged(read: Read):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("[Content_Types].xml", b"<Types/>")
    with pytest.raises(DamagedFile):
        read(out.getvalue(), content_type=DOCX)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(docx_reader, "_MAX_UNPACKED_BYTES", 1024 * 1024)
    out = io.BytesIO(word())
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("word/media/bomb", bytes(2 * 1024 * 1024))
    with pytest.raises(DamagedFile, match="unpacks"):
        docx_reader.read_docx(out.getvalue())


def test_markdown_stays_as_written_and_headings_in_code_begin_nothing(read: Read):
    source = "intro\n\n# One\n\n```\n# no heading\n    indented\n```\n\n## Two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    outcome = read(source.encode(), content_type=MARKDOWN)
    assert [page.label for page in outcome.pages] == [None, "One", "Two"]
    assert outcome.texts[1] == "# One\n\n```\n# no heading\n    indented\n```"
    assert outcome.texts[2] == "## Two\n\n| a | b |\n|---|---|\n| 1 | 2 |"


def test_a_preamble_is_no_heading(read: Read):
    source = "---\ntitle: Ducks\ndate: 2020-01-01\n---\n\n# Ducks\n\nQuack.\n\nTwo lines\nof a heading\n---\n\nMore.\n"
    outcome = read(source.encode(), content_type=MARKDOWN)
    assert [page.label for page in outcome.pages] == [None, "Ducks", "Two lines of a heading"]
    assert outcome.texts[0] == "---\ntitle: Ducks\ndate: 2020-01-01\n---"


def test_markdown_without_headings_is_one_text():
    assert len(read_markdown("only a paragraph")) == 1


def test_html_as_a_browser_shows_it(read: Read):
    source = """<!doctype html><html><head><meta charset="utf-8"><title>Enten &amp; Co</title>
    <style>p{color:red}</style></head><body><script>alert(1)</script><p hidden>secret</p><h1>Eins</h1><p>Grüße&nbsp;an
    alle</p><table><tr><th>Jahr</th><th>Enten</th></tr><tr><td>2019</td><td>120</td></tr></table><h2>Zwei</h2>
    <ul><li>a</li><li>b</li></ul><img src="http://127.0.0.1:9/x.png" alt=""></body></html>"""
    outcome = read(source.encode(), content_type=HTML)
    assert [page.label for page in outcome.pages] == ["Eins", "Zwei"]
    assert outcome.texts[0] == "Eins\n\nGrüße an alle\n\nJahr  Enten\n2019  120"
    assert "secret" not in "".join(outcome.texts)
    assert "alert" not in "".join(outcome.texts)
    assert outcome.opened is not None
    assert outcome.opened.metadata["title"] == "Enten & Co"


def test_code_in_html_keeps_its_indentation_and_its_hyphens(read: Read):
    source = """<!doctype html><html><body><p>Before</p><pre><b>def</b> f(x):
    <i>if</i> x:
        return well-
<span>    </span><span>pass</span>   # gap</pre><p>After</p>
    <table><tr><td><pre>1\n2</pre></td><td><pre>a\nb</pre></td></tr></table><h2>End</h2><pre>  last</pre></body></html>"""
    assert read(source.encode(), content_type=HTML).texts == [
        "Before\n\ndef f(x):\n    if x:\n        return well-\n    pass   # gap\n\nAfter\n\n1  a\n2  b",
        "End\n\n  last",
    ]


def test_html_lists_and_forms_have_the_numbers_and_lines_of_a_browser(read: Read):
    source = """<!doctype html><html><body><ol start="5"><li>five</li><li>six</li></ol><dl><dt>Term</dt><dd>Meaning</dd></dl>
    <select><option>First</option><option>Second</option></select><p style="visibility: hidden">unseen</p></body></html>"""
    assert read(source.encode(), content_type=HTML).texts == ["5. five\n6. six\nTerm\nMeaning\nFirst\nSecond"]


@pytest.mark.parametrize("opening", ["<div>", "<table><tr><td>"])
def test_html_is_read_to_its_end_however_deep_or_refused(read: Read, opening: str):
    closing = "".join(f"</{tag}>" for tag in reversed(opening.strip("<>").split("><")))
    page = "<html><body><p>before</p>{}deep words{}<p>after</p></body></html>"
    for depth in (100, 400):
        source = page.format(opening * depth, closing * depth)
        assert read(source.encode(), content_type=HTML).texts[0].split() == ["before", "deep", "words", "after"]
    with pytest.raises(DamagedFile, match="deeply"):
        read(page.format(opening * 9000, closing * 9000).encode(), content_type=HTML)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8"])
def test_html_in_its_encoding(read: Read, encoding: str):
    declared = {"latin-1": "<meta charset='iso-8859-1'>", "utf-16": "", "utf-8": ""}[encoding]
    source = f"<html><head>{declared}<title>Köln</title></head><body><p>Grüße an alle Vögel</p></body></html>"
    outcome = read(source.encode(encoding))
    assert outcome.texts == ["Grüße an alle Vögel"]
    assert outcome.opened is not None
    assert outcome.opened.metadata["title"] == "Köln"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_text_in_its_encoding(read: Read, encoding: str):
    text = "Grüße aus Köln: die Bäume blühen früh, und viele Vögel sind schon zurück.\n\n  eingerückt"
    assert read(text.encode(encoding), content_type=TEXT).texts == [text]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.\n", "cp1251"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.\n", "koi8-r"),
        ("港湾事務所は午前九時に開き、午後四時に閉まります。\n船は無線で知らせてください。\n", "shift_jis"),
        ("港务局上午九点开门，下午四点关门。\n船舶进入港池前必须通过无线电通报。\n", "gb18030"),
    ],
)
def test_text_in_an_old_encoding(text: str, encoding: str):
    assert decode((text * 5).encode(encoding)) == text * 5


def test_a_letter_beyond_what_is_looked_at_is_read():
    text = "Plain words.\n" * 50_000 + "Später.\n"
    assert decode(text.encode("latin-1")) == text


def test_a_broken_byte_in_utf8_costs_that_byte_only():
    raw = "Grüße aus Köln, schöne Vögel.\n".encode() * 5
    assert decode(raw + b"caf\xe9") == raw.decode() + "caf\ufffd"


def test_text_is_paged_by_form_feeds_or_by_paragraphs(read: Read):
    assert read(b"one\x0ctwo\x0cthree", content_type=TEXT).texts == ["one", "two", "three"]
    long = "\n\n".join(f"Paragraph {n}. " + "Words and more words. " * 20 for n in range(30))
    pages = read(long.encode(), content_type=TEXT).texts
    assert len(pages) > 2
    assert "".join("".join(pages).split()) == "".join(long.split())


def test_a_long_section_is_split_without_loss():
    text = "word " * 10_000
    parts = list(split_long(Section("t", text)))
    assert all(len(part.text) <= MAX_SECTION_CHARS for part in parts)
    assert "".join(part.text for part in parts) == text


def test_limits_hold_for_sections(read: Read):
    with pytest.raises(TooManyPages):
        read(b"x\x0c" * 30, content_type=TEXT, limits=ReadLimits(max_pages=5, max_children=1))


@pytest.mark.parametrize("content_type", [TEXT, MARKDOWN, HTML])
def test_a_file_without_text_is_damaged(read: Read, content_type: str):
    with pytest.raises(DamagedFile):
        read(b"<!-- nothing -->" if content_type == HTML else b"\x0c \n", content_type=content_type, limits=LIMITS)
