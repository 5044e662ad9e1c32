"""The API with another placement, to compare with: ``python -m bench.placed_api --strategy round_robin --fd 3``.

Everything else is the product's. ``affinity`` changes nothing.
"""

from __future__ import annotations

import argparse
import itertools
import random
import socket
from datetime import timedelta
from typing import Any

from service.api import services
from service.cli.serve import run_api
from service.domain.tiers import TierTable
from service.logs import configure_logs
from service.settings import load_settings
from service.store import workers
from service.store.tables import JobRow

STRATEGIES = ("affinity", "round_robin", "random")


class Spread:
    """Stands in for the product's ``Placer``: gives each job to a worker without looking at what that one holds."""

    def __init__(self, strategy: str, tiers: TierTable, lease_seconds: float) -> None:
        self.tiers = tiers
        self._lease_seconds = lease_seconds
        self._strategy = strategy
        self._turn = itertools.count()
        self._random = random.Random(0)

    def place(self, session: Any, now: Any, *given: Any) -> None:
        job = next(value for value in given if isinstance(value, JobRow))
        alive = workers.live(session, now, within_seconds=self._lease_seconds, kind="engine")
        ids = sorted(worker.id for worker in alive if job.tier in worker.tiers)
        if ids:
            turn = next(self._turn) % len(ids)
            job.prefer_worker = ids[turn] if self._strategy == "round_robin" else self._random.choice(ids)
            job.prefer_until = now + timedelta(hours=1)
        job.uncached_tokens = job.tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=STRATEGIES, required=True)
    parser.add_argument("--fd", type=int, required=True, help="a listening socket")
    parser.add_argument("--shared", action="store_true", help="other processes serve it too")
    arguments = parser.parse_args()
    settings = load_settings()
    configure_logs(settings.logs, process="api")
    if arguments.strategy != "affinity":

        def spread(_settings: Any, tiers: TierTable, *_: Any) -> Any:
            return Spread(arguments.strategy, tiers, settings.jobs.lease_seconds)

        services.placer_for = spread
    run_api(settings, socket.socket(fileno=arguments.fd), shared=arguments.shared)


if __name__ == "__main__":
    main()
