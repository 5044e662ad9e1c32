"""The process that reading children are forked from. Started by ``workers.ingest.forking``; it never sees a document's bytes.

It has one thread, an empty environment and the readers' modules loaded, so that a child begins in a few milliseconds
instead of the 0.07 s of processor time that an interpreter and its imports take. It does what its worker asks: fork a child
around three descriptors, and tell how a child ended. It ends with its worker, and its children with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from typing import Any, NoReturn

from workers.ingest.child import serve

# What a child of each task would import first. OCR's runtime starts threads and is left to its children; pypdf, which few
# files need, too.
_READERS = {
    "pdf": ("workers.ingest.pdf_task",),
    "docx": ("workers.ingest.section_task", "workers.ingest.docx_reader"),
    "html": ("workers.ingest.section_task", "workers.ingest.html_reader", "workers.ingest.text_reader"),
    "markdown": ("workers.ingest.section_task", "workers.ingest.text_reader"),
    "text": ("workers.ingest.section_task", "workers.ingest.text_reader"),
}
_MAX_ORDER_BYTES = 4096


def main() -> None:
    """Serves the worker at the other end of standard input until that is closed."""
    control = socket.socket(fileno=0)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _MAX_ORDER_BYTES, 3)
        if not data:
            return
        order = json.loads(data)
        reply = _reap(order["reap"]) if "reap" in order else _start(control, order["start"], descriptors)
        control.send(json.dumps(reply).encode())


def _start(control: socket.socket, task: str, descriptors: list[int]) -> dict[str, Any]:
    _load(task)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as problem:
        return {"error": problem.errno}
    else:
        if pid == 0:
            _become_child(control, descriptors, parent)
        return {"pid": pid}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _load(task: str) -> None:
    for name in _READERS.get(task, ()):
        if name not in sys.modules:
            # The child that needs it reports that it is not installed.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
            # What is here now is shared with the children; a collection there would copy its pages.
            gc.collect()
            gc.freeze()


def _become_child(control: socket.socket, descriptors: list[int], parent: int) -> NoReturn:
    """Takes the child's pipes for standard input and output, keeps the document, and nothing else of the template's."""
    document, orders, answers = descriptors
    control.detach()
    os.setsid()
    os.dup2(orders, 0)
    os.dup2(answers, 1)
    os.close(orders)
    os.close(answers)
    try:
        serve(document, parent)
    finally:
        # Whatever is raised must not unwind into the template's loop.
        os._exit(1)


def _reap(pid: int) -> dict[str, Any]:
    """How the child ended, its status None while it has not. Its id is nobody else's until this has told its status."""
    ended, status, usage = os.wait4(pid, os.WNOHANG)
    return {"status": status if ended else None, "max_memory_bytes": usage.ru_maxrss * 1024}
