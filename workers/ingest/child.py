"""The process that touches documents: what a fork of ``workers.ingest.template`` does, from its first to its last step.

It touches the document only after it is confined, speaks frames on its standard streams, and ends after one file.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from typing import NoReturn

from service.errors import DocumentError
from workers.ingest import confine
from workers.ingest.frames import Frame, encode

_MAX_REQUEST_BYTES = 4 * 1024 * 1024


class Channel:
    """The child's end of the pipes."""

    def send(self, frame: Frame) -> None:
        """Writes a frame whole; blocks while the parent is busy, which bounds what is in flight."""
        data = memoryview(encode(frame))
        while data:
            data = data[os.write(1, data) :]

    def receive(self) -> Frame | None:
        """The next frame from the parent, None when there will be none."""
        head = _read_exactly(4)
        if head is None:
            return None
        length = int.from_bytes(head, "big")
        body = _read_exactly(length) if length <= _MAX_REQUEST_BYTES else None
        return None if body is None else json.loads(body)


def serve(document: int, parent: int) -> NoReturn:
    """Reads one request, serves it and ends. Exit code 0 also after a failure that was reported in a frame.

    ``document`` is the file's descriptor and ``parent`` the process without which this one shall not live.
    """
    channel = Channel()
    request = channel.receive()
    if request is None:
        os._exit(0)
    size = os.fstat(document).st_size
    confine.limit_resources(request["limits"], file_bytes=size)
    dropped = confine.confine(readable=readable_folders(*sys.argv[1:]), parent=parent)
    _answer(document, size, request, channel, dropped)
    # All is said. To close the document and take the interpreter down would keep the parent waiting for 10 ms and more.
    os._exit(0)


def _answer(document: int, size: int, request: Frame, channel: Channel, dropped: list[str]) -> None:
    try:
        if size == 0:
            channel.send({"kind": "failed", "code": "damaged_file", "detail": "The file has no bytes."})
            return
        _serve(document, size, request, channel, dropped)
    except DocumentError as problem:
        channel.send({"kind": "failed", "code": problem.code, "detail": problem.detail})
    except ImportError as problem:
        channel.send({"kind": "failed", "code": "not_installed", "detail": str(problem)})
    except MemoryError:
        channel.send({"kind": "failed", "code": "reading_out_of_memory", "detail": ""})
    except Exception as problem:  # noqa: BLE001  -- readers raise anything; the parent decides by the type's name.
        channel.send({"kind": "failed", "code": "reader_crashed", "detail": type(problem).__name__})


def _serve(document: int, size: int, request: Frame, channel: Channel, dropped: list[str]) -> None:
    task = request["task"]
    # Copy-on-write, because ctypes takes only writable buffers; nothing writes to it.
    mapped = mmap.mmap(document, size, access=mmap.ACCESS_COPY)
    channel.send({"kind": "confined", "dropped": dropped})
    if task == "pdf":
        from workers.ingest.pdf_task import read_pdf  # noqa: PLC0415  -- each task loads its own reader only.

        read_pdf(mapped, request, channel)
    elif task == "ocr":
        from workers.ingest.ocr_task import read_images  # noqa: PLC0415

        read_images(mapped, request, channel)
    else:
        from workers.ingest.section_task import read_sections  # noqa: PLC0415

        read_sections(mapped, request, channel)
    channel.send({"kind": "end"})


def readable_folders(root: str, *libraries: str) -> tuple[str, ...]:
    """Folders that lazy imports and fonts come from. The project's own data folders, below ``root``, are not among them."""
    return (
        *libraries,
        sys.base_prefix + "/lib",
        f"{root}/workers",
        f"{root}/service",
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/share/fonts",
        # onnxruntime looks here for the processor's vector instructions.
        "/proc/cpuinfo",
        "/sys/devices/system/cpu",
    )


def _read_exactly(length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        part = os.read(0, length - len(data))
        if not part:
            return None
        data += part
    return data
