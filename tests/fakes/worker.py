"""An engine worker process with the fake engine: ``python -m tests.fakes.worker --tiers 8k,32k``.

Everything but the engine is the product's own: claims, leases, Celery, SQL. The fake's switches come from the
environment (``LONGREAD_TEST_FAKE``, JSON of ``FakeBehaviour``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from service.domain.tiers import Tier
from service.errors import LongreadError
from service.logs import configure_logs
from service.settings import Settings, load_settings
from workers.engine.engine_profile import EngineProfile
from workers.engine.host import EngineHost
from workers.lifecycle import run_engine


def build(settings: Settings, tiers: Sequence[Tier]) -> tuple[EngineHost, EngineProfile]:
    from tests.fakes.engine import FakeBehaviour, FakeEngine

    behaviour = FakeBehaviour(**json.loads(os.environ.get("LONGREAD_TEST_FAKE", "{}")))
    longest = max(t.length for t in tiers)
    profile = EngineProfile(device="cpu", max_model_len=longest, max_num_seqs=settings.engine.concurrency or 32)
    return EngineHost(FakeEngine(behaviour, max_model_len=longest)), profile


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiers", required=True)
    arguments = parser.parse_args()
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
