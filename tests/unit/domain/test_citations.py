from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.domain.citations import PageIndex, SourcePage, cited_pages, clauses, sentences

PAGES = [
    SourcePage(
        "doc_1", 1, "Chapter 1\n\nThe mooring shackle is tightened to 47 newton\nmetres. Use blue paint.", "pdf"
    ),
    SourcePage("doc_1", 2, "The buoy was launched on 4 March 2019 from Port Ellery.", "ocr"),
]
INDEX = PageIndex(PAGES)


def test_a_sentence_that_a_page_contains_is_exact_whatever_its_case_and_breaks() -> None:
    evidence = INDEX.find_evidence("the mooring shackle is tightened to 47 newton metres.")
    (citation,) = evidence.citations
    assert (citation.page, citation.match, citation.score) == (1, "exact", 1.0)
    assert PAGES[0].text[citation.start : citation.end] == citation.quote
    assert citation.quote == "The mooring shackle is tightened to 47 newton\nmetres"
    assert evidence.answerable is True


def test_another_wording_is_close_and_quotes_the_page_not_the_model() -> None:
    evidence = INDEX.find_evidence("The launch of the buoy was on 4 March 2019 from Port Ellery.")
    (citation,) = evidence.citations
    assert citation.match == "close"
    assert citation.quote == PAGES[1].text
    assert citation.source == "ocr"
    assert citation.page == 2


def test_another_number_is_no_support() -> None:
    evidence = INDEX.find_evidence("The mooring shackle is tightened to 74 newton metres.")
    assert evidence.citations == []
    assert [u.text for u in evidence.unsupported] == ["The mooring shackle is tightened to 74 newton metres."]
    assert evidence.answerable is None


def test_saying_that_the_document_does_not_say_it_is_no_claim() -> None:
    evidence = INDEX.find_evidence("The document does not mention the anchor's weight.")
    assert (evidence.citations, evidence.unsupported, evidence.answerable) == ([], [], False)


def test_every_sentence_is_cited_or_unsupported() -> None:
    answer = "The buoy was launched from Port Ellery. It weighs two tonnes."
    evidence = INDEX.find_evidence(answer)
    spans = sorted(
        [(c.answer_start, c.answer_end) for c in evidence.citations] + [(u.start, u.end) for u in evidence.unsupported]
    )
    assert spans == sentences(answer)
    assert cited_pages(evidence.citations) == [2]


@given(st.text())
def test_sentence_offsets_never_overlap_and_stay_inside(text: str) -> None:
    last = 0
    for start, end in sentences(text):
        assert last <= start < end <= len(text)
        last = end


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_answer_on_any_page_gives_quotes_that_stand_on_the_page(answer: str, page: str) -> None:
    for citation in PageIndex([SourcePage("d", 1, page, "pdf")]).find_evidence(answer).citations:
        assert page[citation.start : citation.end] == citation.quote


def test_a_sentence_that_is_true_in_part_is_cited_in_part() -> None:
    answer = "The buoy was launched on 4 March 2019 from Port Ellery, and it was painted green by the harbour's own painters."
    evidence = INDEX.find_evidence(answer)
    assert [answer[c.answer_start : c.answer_end] for c in evidence.citations] == [
        "The buoy was launched on 4 March 2019 from Port Ellery"
    ]
    assert [u.text for u in evidence.unsupported] == ["and it was painted green by the harbour's own painters."]


@given(st.text(alphabet="ab ,;:.3\n", max_size=80))
def test_clauses_never_overlap_and_stay_inside_their_sentence(text: str) -> None:
    for start, end in sentences(text):
        last = start
        for a, b in clauses(text, start, end):
            assert last <= a < b <= end
            last = b
