"""A stub of the service, and a file to upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.stub import Stub, running_stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as stub:
        yield stub


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"%PDF-1.7 " + b"x" * 100_000)
    return file
