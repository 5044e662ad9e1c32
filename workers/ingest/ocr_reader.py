"""The only rapidocr import: text of a page image. For use in an OCR child only; part of the ``ocr`` extra.

The models (detection and recognition for Latin, Chinese and Japanese letters) are in rapidocr's wheel; nothing is
fetched. One thread: the parent runs as many children as there are cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rapidocr import RapidOCR

from workers.ingest.layout import Piece, lay_out

NAME = "rapidocr"
_SURE = 0.8
_ONE_THREAD = {
    "Global.log_level": "critical",
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
}


@dataclass(frozen=True)
class OcrText:
    """A page's text and the mean confidence over its characters, 0 to 1; empty text has confidence 0."""

    text: str
    confidence: float


class OcrReader:
    """Loads the models, which takes about a second."""

    def __init__(self) -> None:
        self._engine = RapidOCR(params=_ONE_THREAD)

    def read(self, image: Any) -> OcrText:
        """Reads an image (height, width, 3), uint8, whichever way up it was scanned.

        The engine's own line turner is off, because it turns every line of an upside-down page and leaves their order
        reversed; instead a page that reads badly, or whose lines stand upright, is turned and read again.
        """
        best, upright = self._read_once(image)
        turns = (1, 3) if upright else () if best.confidence >= _SURE or not best.text else (2,)
        for turn in turns:
            turned, still_upright = self._read_once(np.ascontiguousarray(np.rot90(image, turn)))
            if not still_upright and _weight(turned) > _weight(best):
                best = turned
        return best

    def _read_once(self, image: Any) -> tuple[OcrText, bool]:
        """The text of the image as it lies, and whether most of it stands upright (lines taller than wide)."""
        result: Any = self._engine(image, use_cls=False)
        if result.boxes is None or not result.txts:
            return OcrText("", 0.0), False
        pieces = [
            Piece(text, *box.min(axis=0).tolist(), *box.max(axis=0).tolist())
            for box, text in zip(result.boxes, result.txts, strict=True)
        ]
        chars = [max(1, len(text)) for text in result.txts]
        confidence = sum(c * s for c, s in zip(chars, result.scores, strict=True)) / sum(chars)
        upright = sum(c for c, p in zip(chars, pieces, strict=True) if p.height > 1.5 * p.width and c > 1)
        return OcrText(lay_out(pieces), min(1.0, max(0.0, float(confidence)))), upright > 0.5 * sum(chars)


def _weight(read: OcrText) -> float:
    return read.confidence**2 * len(read.text)
