"""An engine worker process with the fake engine: ``python -m tests.fakes.worker --tiers 8k,32k``.

Everything but the engine is the product's own: claims, leases, Celery, SQL. Switches come from the environment:

``LONGREAD_TEST_FAKE``
    JSON of ``FakeBehaviour``.
``LONGREAD_TEST_PROFILE``
    JSON of fields of the profile that the engine says it was started with.
``LONGREAD_TEST_RECALL``
    JSON of ``Memory``: the engine answers a probe's questions.
``LONGREAD_TEST_LEDGER``
    File of the ledger. With it the engine has a core process of its own (``CoreEngine``).
``LONGREAD_TEST_FAULTS``
    JSON of ``Faults``.
``LONGREAD_TEST_SKEW_SECONDS``
    How far this process's wall clock is off.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import time_machine

from service.domain.tiers import Tier
from service.errors import LongreadError
from service.logs import configure_logs
from service.settings import Settings, load_settings
from tests.fakes.core import CoreEngine, Faults
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.fakes.ledger import Ledger
from tests.fakes.recalling import Memory, RecallingEngine
from workers.engine.engine import Engine
from workers.engine.engine_profile import EngineProfile
from workers.engine.host import EngineHost
from workers.lifecycle import run_engine


def build(settings: Settings, tiers: Sequence[Tier]) -> tuple[EngineHost, EngineProfile]:
    longest = max(t.length for t in tiers)
    profile = EngineProfile(device="cpu", max_model_len=longest, max_num_seqs=settings.engine.concurrency or 32)
    profile = dataclasses.replace(profile, **_switches("LONGREAD_TEST_PROFILE"))
    behaviour, recall = FakeBehaviour(**_switches("LONGREAD_TEST_FAKE")), _switches("LONGREAD_TEST_RECALL")
    engine: Engine = FakeEngine(behaviour, max_model_len=longest)
    if recall:
        engine = RecallingEngine(behaviour, Memory(**recall), max_model_len=longest)
    ledger = os.environ.get("LONGREAD_TEST_LEDGER")
    if ledger:
        engine = CoreEngine(engine, Ledger(Path(ledger)), Faults(**_switches("LONGREAD_TEST_FAULTS")))
    return EngineHost(engine), profile


def _switches(name: str) -> dict[str, Any]:
    return json.loads(os.environ.get(name, "{}"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiers", required=True)
    arguments = parser.parse_args()
    skew = float(os.environ.get("LONGREAD_TEST_SKEW_SECONDS", "0"))
    if skew:
        time_machine.travel(time.time() + skew, tick=True).start()
    try:
        settings = load_settings()
        configure_logs(settings.logs, process="engine-worker")
        return run_engine(settings, arguments.tiers.split(","), build)
    except LongreadError as error:
        sys.stderr.write(f"{error.code}: {error.detail}\n")
        return 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
