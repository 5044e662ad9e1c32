"""A supervisor with made-up children, as a process of its own: ``python -m tests.integration.cli.harness DIR SPECS``.

Each child is Python source. It is ready when ``DIR/NAME.ready`` holds its pid. The harness prints the supervisor's JSON
events and ends as ``longread up`` does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from service.cli.exits import CommandFailed
from service.cli.output import print_json
from service.cli.supervisor.backoff import Backoff
from service.cli.supervisor.child import Program
from service.cli.supervisor.supervisor import StopRequested, Supervisor
from service.cli.supervisor.view import JsonView
from service.logs import configure_logs
from service.settings import LogSettings

PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
HERE, NAME = Path(sys.argv[1]), sys.argv[2]
def ready():
    draft = HERE / f"{NAME}.draft"
    draft.write_text(str(os.getpid()))
    draft.rename(HERE / f"{NAME}.ready")
def note(text):
    with (HERE / "notes").open("a") as file:
        file.write(f"{text}\\n")
def obey(*_):
    note(f"{NAME} stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, obey)
"""


def program(folder: Path, name: str, source: str, stop_seconds: float) -> Program:
    marker = folder / f"{name}.ready"

    def is_ready(pid: int) -> bool:
        return marker.exists() and marker.read_text() == str(pid)

    argv = [sys.executable, "-S", "-c", PRELUDE + source, str(folder), name]
    return Program(name, argv, is_ready, stop_seconds=stop_seconds)


def main() -> int:
    folder, specs = Path(sys.argv[1]), json.loads(sys.argv[2])
    configure_logs(LogSettings(level="warning"), process="up")
    view = JsonView()
    with Supervisor(
        folder / "logs", view.observe, backoff=lambda: Backoff(first_seconds=0.1, cap_seconds=0.4, healthy_seconds=60)
    ) as supervisor:
        try:
            children = [
                supervisor.start(program(folder, s["name"], s["source"], s.get("stop_seconds", 10.0))) for s in specs
            ]
            supervisor.until_ready(*children)
            view.say("ready", "ready")
            supervisor.forever()
        except StopRequested:
            view.say("stopping", "stopping")
        except CommandFailed as error:
            print_json(error.payload)
            return 1
        finally:
            supervisor.stop(*[[child] for child in supervisor.children])
    view.say("stopped", "stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
