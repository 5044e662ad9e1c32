"""Numbers that Word counts when it shows a document: a contract's clauses are found by them."""

from __future__ import annotations

import io

import docx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls, qn

from tests.unit.ingest.conftest import Read

Paragraph = tuple[str, int | None, int]
"""Text, list number (None: none) and level."""


def level(at: int, kind: str, pattern: str, more: str = "") -> str:
    return f'<w:lvl w:ilvl="{at}"><w:start w:val="1"/><w:numFmt w:val="{kind}"/>{more}<w:lvlText w:val="{pattern}"/></w:lvl>'


CLAUSES = [
    level(0, "decimal", "%1."),
    level(1, "decimal", "%1.%2"),
    level(2, "lowerLetter", "(%3)"),
    level(3, "lowerRoman", "(%4)"),
]


def contract(levels: list[str], *paragraphs: Paragraph, overrides: str = "") -> bytes:
    """A document with one list shape, numbers 90 and 91 of it, and paragraphs."""
    document = docx.Document()
    numbering = document.part.numbering_part.element
    names = nsdecls("w")
    numbering.insert(0, parse_xml(f'<w:abstractNum {names} w:abstractNumId="90">{"".join(levels)}</w:abstractNum>'))
    for number in (90, 91):
        more = overrides if number == 91 else ""
        numbering.append(
            parse_xml(f'<w:num {names} w:numId="{number}"><w:abstractNumId w:val="90"/>{more}</w:num>'),
        )
    for text, number, at in paragraphs:
        document.add_paragraph(text)
        if number is not None:
            properties = parse_xml(
                f'<w:numPr {names}><w:ilvl w:val="{at}"/><w:numId w:val="{number}"/></w:numPr>',
            )
            element = next(document.element.body.iterchildren(qn("w:p"), reversed=True))
            element.get_or_add_pPr().append(properties)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_clauses_are_numbered_as_word_shows_them(read: Read):
    data = contract(
        CLAUSES,
        ("Definitions", 90, 0),
        ("Term", 90, 1),
        ("not numbered", None, 0),
        ("Price", 90, 1),
        ("net", 90, 2),
        ("tax", 90, 2),
        ("rate", 90, 3),
        ("Liability", 90, 0),
        ("Limit", 90, 1),
        ("amount", 90, 2),
    )
    assert read(data).texts[0].split("\n") == [
        "1. Definitions",
        "1.1 Term",
        "not numbered",
        "1.2 Price",
        "(a) net",
        "(b) tax",
        "(i) rate",
        "2. Liability",
        "2.1 Limit",
        "(a) amount",
    ]


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        ("", ["1.", "2.", "3.", "4."]),
        ('<w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/></w:lvlOverride>', ["1.", "2.", "7.", "8."]),
    ],
)
def test_a_second_list_goes_on_unless_it_says_where_it_begins(read: Read, overrides: str, numbers: list[str]):
    paragraphs = [("x", 90, 0), ("x", 90, 0), ("x", 91, 0), ("x", 91, 0)]
    lines = read(contract(CLAUSES, *paragraphs, overrides=overrides)).texts[0].split("\n")
    assert [line.split()[0] for line in lines] == numbers


def test_kinds_of_numbers(read: Read):
    for kind, third in (
        ("upperRoman", "III"),
        ("upperLetter", "C"),
        ("decimalZero", "03"),
        ("bullet", "•"),
        ("none", "§"),
        ("ordinalText", "3"),
    ):
        pattern = "§" if kind == "none" else "%1"
        data = contract([level(0, kind, pattern)], *[("x", 90, 0)] * 3)
        assert read(data).texts[0].split("\n")[2] == f"{third} x"
    data = contract(
        [level(0, "upperRoman", "%1"), level(1, "decimal", "%1.%2", "<w:isLgl/>")], ("x", 90, 0), ("y", 90, 1)
    )
    assert read(data).texts[0].split("\n") == ["I x", "1.1 y"]


def test_numbers_come_from_styles_and_in_tables(read: Read):
    document = docx.Document()
    for text in ("one", "two"):
        document.add_paragraph(text, style="List Number")
    cell = document.add_table(1, 1).cell(0, 0)
    cell.paragraphs[0].style = "List Number"
    cell.paragraphs[0].text = "three"
    out = io.BytesIO()
    document.save(out)
    assert read(out.getvalue()).texts[0].split() == ["1.", "one", "2.", "two", "3.", "three"]


def test_hidden_words_are_not_read_and_headers_are_read_once(read: Read):
    document = docx.Document()
    for section in (document.sections[0], document.add_section()):
        section.header.is_linked_to_previous = False
        section.header.paragraphs[0].text = "Harbour Office, Quay 3"
    paragraph = document.add_paragraph("Shown")
    paragraph.add_run(" unseen").font.hidden = True
    kept = paragraph.add_run(" kept")
    kept.font.hidden = False
    out = io.BytesIO()
    document.save(out)
    outcome = read(out.getvalue())
    assert [(page.label, page.text) for page in outcome.pages] == [
        (None, "Shown kept"),
        ("Headers and footers", "Headers and footers\nHarbour Office, Quay 3"),
    ]
