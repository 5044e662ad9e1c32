from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.domain import prompt


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


texts = st.text(max_size=50)


@given(st.lists(texts, max_size=5), st.lists(st.tuples(texts, texts), max_size=3), texts)
def test_the_prefix_never_changes_with_the_conversation(
    pages: list[str], turns: list[tuple[str, str]], question: str
) -> None:
    ids = [prompt.page_ids(encode, n, text) for n, text in enumerate(pages, 1)]
    prefix, starts = prompt.prefix_ids([-1], ids, encode)
    assert len(prefix) == 1 + len(prompt.DOCUMENT_START) + sum(map(len, ids)) + len(prompt.DOCUMENT_END)
    for number, start in enumerate(starts, 1):
        marker = encode(prompt.page_marker(number))
        assert prefix[start : start + len(marker)] == marker
    suffix = prompt.suffix_ids(turns, question, to_assistant=[-2], to_user=[-3], encode=encode)
    assert suffix.count(-2) == len(turns) + 1
    assert suffix.count(-3) == len(turns)


def test_a_follow_up_extends_the_prompt_it_follows() -> None:
    first = prompt.suffix_ids([], "Why?", to_assistant=[-2], to_user=[-3], encode=encode)
    second = prompt.suffix_ids([("Why?", "So.")], "And?", to_assistant=[-2], to_user=[-3], encode=encode)
    assert second[: len(first)] == first
