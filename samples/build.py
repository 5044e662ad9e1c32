"""Builds the sample PDFs from the Markdown files beside this program: `python samples/build.py [folder]`.

The same sources give the same bytes: the date and the producer are fixed, only the core fonts are used, and the
streams are not compressed, because builds of zlib differ in their output.
"""

import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fpdf import FPDF
from fpdf.enums import MethodReturnValue, TableBordersLayout
from fpdf.fonts import FontFace

HERE = Path(__file__).parent
CREATED = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
NAVY, GREY, INK = (24, 52, 92), (110, 116, 124), (28, 28, 30)
SAFFRON, VIOLET, WATER = (244, 176, 44), (140, 82, 190), (176, 206, 222)
MARGIN, LINE = 24.0, 5.6  # Millimetres, the line for 11 pt text.

Kind = Literal["section", "heading", "paragraph", "bullets", "steps", "table", "note", "caption"]


@dataclass(frozen=True)
class Block:
    """One block of a source. `lines` holds one entry for a paragraph, one for each item or table row otherwise."""

    kind: Kind
    lines: list[str]


@dataclass(frozen=True)
class Source:
    """A parsed Markdown source: its front matter and its blocks in reading order."""

    meta: dict[str, str]
    blocks: list[Block]


def parse(text: str) -> Source:
    """Reads the small part of Markdown that the samples use: headings, paragraphs, lists, tables and notes."""
    _, front, body = text.split("---\n", 2)
    meta = dict(line.split(": ", 1) for line in front.splitlines())
    chunks = [chunk.splitlines() for chunk in re.split(r"\n{2,}", body.strip())]
    return Source(meta, [_block(lines) for lines in chunks])


def _block(lines: list[str]) -> Block:
    first = lines[0]
    if first.startswith("## "):
        return Block("section", [first[3:]])
    if first.startswith("### "):
        return Block("heading", [first[4:]])
    if first.startswith("- "):
        return Block("bullets", [line[2:] for line in lines])
    if re.match(r"\d+\. ", first):
        return Block("steps", [line.split(". ", 1)[1] for line in lines])
    if first.startswith("|"):
        return Block("table", [line for line in lines if not line.startswith("|---")])
    if first.startswith("> "):
        return Block("note", [first[2:]])
    return Block("caption" if re.match(r"Table \d+\. ", first) else "paragraph", [" ".join(lines)])


class Sheet(FPDF):
    """An A4 document in the house layout of the invented firm."""

    def __init__(self, meta: dict[str, str]) -> None:
        super().__init__(format="A4")
        self.meta = meta
        self.cover = meta["kind"] == "manual"
        self.set_compression(False)
        self.set_creation_date(CREATED)
        self.set_producer("longread samples")
        self.set_title(f"{meta['title']}: {meta['subtitle']}")
        self.set_author(meta["company"])
        self.set_lang("en")
        self.set_margins(MARGIN, MARGIN)
        self.c_margin = 0.0  # Text and rules share one left edge.
        self.set_auto_page_break(auto=True, margin=MARGIN + 2)

    def footer(self) -> None:
        """Prints a rule, the document's number and the page number; the cover carries none."""
        if self.cover and self.page_no() == 1:
            return
        self.set_y(-18)
        self.rule(GREY, 0.2)
        self.set_y(-16)
        self.style("", 8.5, GREY)
        self.cell(self.epw / 2, 5, self.meta["number"])
        self.cell(self.epw / 2, 5, str(self.page_no()), align="R")

    def style(self, weight: Literal["", "B", "I"], size: float, colour: tuple[int, int, int] = INK) -> None:
        self.set_font("Helvetica", weight, size)
        self.set_text_color(*colour)

    def rule(self, colour: tuple[int, int, int], width: float) -> None:
        self.set_draw_color(*colour)
        self.set_line_width(width)
        self.line(self.l_margin, self.get_y(), self.w - self.r_margin, self.get_y())

    def text_block(self, text: str, *, indent: float = 0.0, height: float = LINE, after: float = 2.4) -> None:
        self.set_x(self.l_margin + indent)
        self.multi_cell(self.epw - indent, height, text, align="L", new_x="LMARGIN", new_y="NEXT")
        self.ln(after)

    def keep(self, height: float) -> None:
        """Starts a new page when less than `height` millimetres are left on this one."""
        if self.will_page_break(height):
            self.add_page()


def draw_block(pdf: Sheet, block: Block) -> None:
    """Sets one block at the current position."""
    text = block.lines[0]
    pdf.style("", 11)
    match block.kind:
        case "section":
            draw_section(pdf, text)
        case "heading":
            pdf.keep(22)
            pdf.ln(1.6)
            pdf.style("B", 12, NAVY)
            pdf.start_section(text, level=1)
            pdf.text_block(text, after=1.2)
        case "paragraph":
            pdf.text_block(text)
        case "caption":
            pdf.style("I", 9.5, GREY)
            pdf.text_block(text, after=3)
        case "bullets" | "steps":
            draw_list(pdf, block)
        case "note":
            draw_note(pdf, text)
        case "table":
            draw_table(pdf, [[cell.strip() for cell in line.strip("|").split("|")] for line in block.lines])


def draw_section(pdf: Sheet, title: str) -> None:
    if pdf.cover:
        pdf.add_page()
    else:
        pdf.keep(24)
        pdf.ln(2.4)
    pdf.start_section(title)
    pdf.style("B", 18 if pdf.cover else 13, NAVY)
    pdf.text_block(title, height=9 if pdf.cover else 7, after=1)
    if pdf.cover:
        pdf.rule(SAFFRON, 0.9)
        pdf.ln(4)


def draw_list(pdf: Sheet, block: Block) -> None:
    for number, line in enumerate(block.lines, 1):
        pdf.keep(LINE)
        pdf.set_x(pdf.l_margin + 2)
        pdf.cell(6, LINE, f"{number}." if block.kind == "steps" else "-")
        pdf.text_block(line, indent=8, after=0.9)
    pdf.ln(1.8)


def draw_note(pdf: Sheet, text: str) -> None:
    pdf.style("I", 10.5)
    measured = pdf.multi_cell(pdf.epw - 6, LINE, text, align="L", dry_run=True, output=MethodReturnValue.HEIGHT)
    height = float(str(measured))
    pdf.keep(height + 5)
    top = pdf.get_y() + 0.6
    pdf.set_fill_color(*SAFFRON)
    pdf.rect(pdf.l_margin, top, 1.2, height + 2, style="F")
    pdf.set_y(top + 1)
    pdf.text_block(text, indent=6, after=4)


def draw_table(pdf: Sheet, rows: list[list[str]]) -> None:
    pdf.style("", 10)
    pdf.keep(7.4 * len(rows) + 10)
    pdf.set_draw_color(*NAVY)
    pdf.set_fill_color(255, 255, 255)
    pdf.set_line_width(0.2)
    head = FontFace(emphasis="BOLD", color=(255, 255, 255), fill_color=NAVY)
    # Narrow columns for codes, wide ones for sentences: the longest cell of each column decides.
    widths = tuple(max(len(row[column]) for row in rows) + 4 for column in range(len(rows[0])))
    with pdf.table(
        rows,
        borders_layout=TableBordersLayout.ALL,
        headings_style=head,
        col_widths=widths,
        line_height=5.4,
        padding=(1, 2),
        text_align="LEFT",
    ):
        pass
    pdf.ln(1.6)


def draw_cover(pdf: Sheet) -> None:
    pdf.add_page()
    pdf.set_y(34)
    pdf.style("B", 28, NAVY)
    pdf.text_block(pdf.meta["title"], height=12.5, after=2)
    pdf.rule(SAFFRON, 1.4)
    pdf.ln(4)
    pdf.style("", 18, GREY)
    pdf.text_block(pdf.meta["subtitle"], height=9)
    draw_buoy(pdf, pdf.w / 2, 190)
    pdf.set_y(248)
    pdf.style("B", 11, NAVY)
    pdf.text_block(pdf.meta["company"], after=0)
    pdf.style("", 11)
    pdf.text_block(pdf.meta["place"], after=0)
    pdf.text_block(f"{pdf.meta['number']}, {pdf.meta['issue']}", after=0)


def draw_buoy(pdf: Sheet, x: float, y: float) -> None:
    """Draws the buoy with the middle of its water line at `x`, `y` (millimetres)."""
    pdf.set_line_width(0.8)
    pdf.set_draw_color(*NAVY)
    pdf.set_fill_color(*GREY)
    pdf.rect(x - 1.5, y - 78, 3, 64, style="DF")  # Mast.
    pdf.rect(x - 6, y - 84, 12, 8, style="DF")  # Instrument head.
    pdf.line(x, y - 84, x, y - 94)
    pdf.line(x - 9, y - 94, x + 9, y - 94)
    pdf.set_fill_color(*NAVY)
    for offset in (-9, 0, 9):
        pdf.circle(x + offset, y - 94, 2, style="F")  # Wind cups.
    for left, right in ((x - 15, x - 4), (x + 15, x + 4)):
        pdf.polygon(((left, y - 18), (right, y - 40), (right, y - 18)), style="DF")  # Solar panels.
    pdf.set_fill_color(*VIOLET)
    pdf.rect(x + 2.5, y - 56, 6, 9, style="DF", round_corners=True, corner_radius=2)  # Lantern.
    pdf.set_fill_color(*WATER)
    pdf.rect(x - 62, y, 124, 40, style="F")
    pdf.set_dash_pattern(dash=1.2, gap=1)
    pdf.line(x, y + 16, x + 26, y + 33)  # Chain.
    pdf.set_dash_pattern()
    pdf.set_fill_color(*GREY)
    pdf.rect(x + 20, y + 32, 14, 8, style="DF")  # Sinker.
    pdf.set_fill_color(*SAFFRON)
    hull = ((x - 28, y - 14), (x + 28, y - 14), (x + 22, y + 9), (x + 8, y + 16), (x - 8, y + 16), (x - 22, y + 9))
    pdf.polygon(hull, style="DF")
    pdf.set_draw_color(255, 255, 255)
    pdf.set_line_width(1.2)
    pdf.line(x - 25.4, y - 5, x + 25.4, y - 5)


def draw_contents(pdf: Sheet, blocks: list[Block], pages: dict[str, int]) -> None:
    """Sets the contents page; `pages` is empty in the first of the two passes."""
    pdf.add_page()
    pdf.style("B", 18, NAVY)
    pdf.text_block("Contents", height=9, after=1)
    pdf.rule(SAFFRON, 0.9)
    pdf.ln(5)
    for title in (block.lines[0] for block in blocks if block.kind == "section"):
        pdf.style("", 12)
        pdf.cell(pdf.epw - 12, 11, title)
        pdf.cell(12, 11, str(pages.get(title, 0)), align="R", new_x="LMARGIN", new_y="NEXT")
        pdf.rule((214, 218, 222), 0.2)


def draw_letterhead(pdf: Sheet) -> None:
    pdf.add_page()
    pdf.style("B", 10.5, NAVY)
    pdf.cell(pdf.epw / 2, LINE, pdf.meta["company"])
    pdf.style("", 10.5, GREY)
    pdf.cell(pdf.epw / 2, LINE, f"{pdf.meta['number']}, {pdf.meta['issue']}", align="R", new_x="LMARGIN", new_y="NEXT")
    pdf.text_block(pdf.meta["place"], after=6)
    pdf.style("", 13, GREY)
    pdf.text_block(pdf.meta["subtitle"], height=6.5, after=0)
    pdf.style("B", 19, NAVY)
    pdf.text_block(pdf.meta["title"], height=9, after=1.5)
    pdf.rule(SAFFRON, 0.9)
    pdf.ln(2)


def lay_out(source: Source, pages: dict[str, int]) -> Sheet:
    pdf = Sheet(source.meta)
    if pdf.cover:
        draw_cover(pdf)
        draw_contents(pdf, source.blocks, pages)
    else:
        draw_letterhead(pdf)
    for block in source.blocks:
        draw_block(pdf, block)
        if block.kind == "section":
            pages[block.lines[0]] = pdf.page_no()
    return pdf


def build(path: Path) -> bytes:
    """Returns the PDF of one source. Laid out twice, so that the contents page knows the page numbers."""
    source = parse(path.read_text(encoding="utf-8"))
    pages: dict[str, int] = {}
    lay_out(source, pages)
    return bytes(lay_out(source, pages).output())


def main(target: Path) -> None:
    for path in sorted(HERE.glob("*.md")):
        pdf = target / f"{path.stem}.pdf"
        pdf.write_bytes(build(path))
        print(pdf.name, pdf.stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
