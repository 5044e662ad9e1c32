"""Entry of the worker processes: ``python -m workers ingest`` and ``python -m workers engine --tiers 8k,32k``.

Thin wiring. The guard at the end matters: the engine core is a spawned process, which imports this file again.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.settings import Settings


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="longread worker")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("ingest", help="read uploaded documents")
    engine = kinds.add_parser("engine", help="answer questions with one engine")
    engine.add_argument("--tiers", required=True, help="tiers to serve, separated by commas")
    arguments = parser.parse_args(argv)

    from service.errors import LongreadError  # noqa: PLC0415 - the engine core imports this file and needs none of it
    from service.logs import configure_logs  # noqa: PLC0415
    from service.settings import load_settings  # noqa: PLC0415

    try:
        settings = load_settings()
        configure_logs(settings.logs, process=f"{arguments.kind}-worker")
        if arguments.kind == "ingest":
            return _ingest(settings)
        return _engine(settings, [name.strip() for name in arguments.tiers.split(",") if name.strip()])
    except LongreadError as error:
        sys.stderr.write(f"{error.code}: {error.detail}\n")
        return 1


def _ingest(settings: Settings) -> int:
    from workers.lifecycle import run_ingest  # noqa: PLC0415

    return run_ingest(settings)


def _engine(settings: Settings, tiers: list[str]) -> int:
    from workers.lifecycle import run_engine  # noqa: PLC0415

    return run_engine(settings, tiers)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of an engine that died may never end, and the supervisor waits for this process.
    os._exit(status)
