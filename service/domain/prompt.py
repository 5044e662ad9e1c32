"""The prompt's layout: what stands where, and which token ids come from storage. Pure.

    fixed system text → document with page markers → [reader's mark] → history → question

Nothing that varies stands before the document, so every question on it shares one prefix. Parts are tokenised apart
and their ids joined: a page's ids never depend on its neighbours, and the prefix's never on the question.

An engine's cache knows a prompt's blocks by all tokens before them and one salt for all of it. Where tenants share a
document's prefix, and so its salt, each one's mark follows the document, so that no block of a question or an answer is found
by another tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Encode = Callable[[str], list[int]]

DOCUMENT_START = "Document:\n"
DOCUMENT_END = "\n\nEnd of the document.\n\n"
READER_MARK_CHARACTERS = 8


def page_marker(number: int) -> str:
    """What stands before each page's text. Pages count from 1."""
    return f"\n\n[Page {number}]\n"


def page_ids(encode: Encode, number: int, text: str) -> list[int]:
    """Token ids of one page with its marker.

    Args:
        encode: Ordinary text to ids; special tokens in it are plain text.
        number: The page, from 1.
        text: Its text.
    """
    return encode(page_marker(number)) + encode(text)


def prefix_ids(head: Sequence[int], pages: Iterable[Sequence[int]], encode: Encode) -> tuple[list[int], list[int]]:
    """Join a document's prefix.

    Args:
        head: Ids of the template up to where the document starts.
        pages: Ids of each page (outer = page from 1, inner = token ids).
        encode: Ordinary text to ids.

    Returns:
        The ids, and the offset of each page in them.
    """
    ids = [*head, *encode(DOCUMENT_START)]
    starts: list[int] = []
    for page in pages:
        starts.append(len(ids))
        ids.extend(page)
    ids.extend(encode(DOCUMENT_END))
    return ids, starts


def mark_ids(encode: Encode, mark: str) -> list[int]:
    """A reader's mark, character by character, so that all marks have the same number of tokens."""
    return [token for character in f"[{mark}]\n" for token in encode(character)]


def suffix_ids(
    turns: Sequence[tuple[str, str]],
    question: str,
    *,
    to_assistant: Sequence[int],
    to_user: Sequence[int],
    encode: Encode,
) -> list[int]:
    """What follows the prefix: earlier turns, then the question, then the assistant's cue.

    Args:
        turns: Earlier (question, answer) pairs, oldest first.
        question: The new question.
        to_assistant: Ids of the template between a question and its answer.
        to_user: Ids of the template between an answer and the next question.
        encode: Ordinary text to ids.
    """
    ids: list[int] = []
    for asked, answered in turns:
        ids += [*encode(asked), *to_assistant, *encode(answered), *to_user]
    return [*ids, *encode(question), *to_assistant]
