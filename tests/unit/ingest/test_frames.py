"""The parent believes nothing that a child says."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.ingest.frames import BadFrame, FrameBuffer, encode, opened_from, page_from


@given(st.lists(st.fixed_dictionaries({"kind": st.text(), "text": st.text()}), max_size=5), st.integers(1, 40))
def test_frames_survive_any_cut(frames: list[dict[str, str]], step: int):
    data = b"".join(encode(frame) for frame in frames)
    buffer = FrameBuffer(10_000)
    got: list[dict[str, Any]] = []
    for start in range(0, len(data), step):
        got += buffer.feed(data[start : start + step])
    assert got == frames


def test_a_lone_surrogate_does_not_stop_the_pipe():
    assert FrameBuffer(100).feed(encode({"kind": "page", "text": "a\ud800b"})) == [{"kind": "page", "text": "a?b"}]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 2**31),
        struct.pack(">I", 3) + b"{{{",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 10) + b'{"kind":1}',
        struct.pack(">I", 4) + b"\xff\xfe\xff\xfe",
    ],
)
def test_what_is_no_frame_is_refused(data: bytes):
    with pytest.raises(BadFrame):
        FrameBuffer(1000).feed(data)


@pytest.mark.parametrize("pages", [0, -1, True, "3", None, 1.5])
def test_a_page_count_is_a_positive_integer(pages: object):
    with pytest.raises(BadFrame):
        opened_from({"kind": "opened", "pages": pages})


def test_metadata_is_bounded_and_of_known_keys():
    opened = opened_from({"pages": 1, "metadata": {"title": "a\n" * 900, "evil": "x", "author": 3, "subject": "  "}})
    assert set(opened.metadata) == {"title"}
    assert len(opened.metadata["title"]) == 500


@pytest.mark.parametrize(
    "change",
    [
        {"text": None},
        {"text": "x" * 101},
        {"number": "1"},
        {"number": None},
        {"reader": 7},
        {"confidence": 2},
        {"confidence": "high"},
    ],
)
def test_a_page_is_checked(change: dict[str, object]):
    frame = {"kind": "page", "number": 1, "text": "x", "reader": "pdfium"}
    page, problem, wants_ocr = page_from(frame, max_page_chars=100)
    assert (page.number, page.text, page.source, problem, wants_ocr) == (1, "x", "pdf", None, False)
    with pytest.raises(BadFrame):
        page_from({**frame, **change}, max_page_chars=100)
