"""Run Celery in this process around a runtime, and drain in an order that Celery alone does not keep.

Celery's threads pool has no time limits and waits for running threads without bound when it stops; so the runtime
drains itself: stop claiming, wait, give back, shut down, and leave the process in any case.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import structlog
from celery import Celery, bootsteps
from celery import signals as celery_signals

from service.jobqueue.names import RUN_TASK, tier_queue, worker_queue
from workers.runtime import Runtime

log = structlog.stdlib.get_logger(__name__)

_GRACE_SECONDS = 10.0
_ENGINE_DEAD_STATUS = 70
"""Exit status of a process whose engine died (EX_SOFTWARE); the supervisor starts it again."""


def run(app: Celery, runtime: Runtime, *, shutdown: Callable[[], None]) -> int:
    """Consume until SIGTERM, SIGINT, SIGQUIT, SIGHUP (unless it is ignored, as under nohup) or the engine's death.

    Args:
        app: The Celery application.
        runtime: Registered already (``Runtime.start``).
        shutdown: Ends the engine and whatever else the process holds; called once, after the last job.

    Returns:
        The process's exit status.
    """

    @app.task(name=RUN_TASK, ignore_result=True)
    def run_job(job_id: str | None = None) -> None:
        """A doorbell: something waits. The id is for tracing; the claim takes the best job there is."""
        del job_id
        runtime.work()

    del run_job
    stopping, drained = threading.Event(), threading.Event()

    def drain() -> None:
        wait = 0.0 if runtime.dead.is_set() else runtime.settings.jobs.drain_seconds
        runtime.drain(wait_seconds=wait)
        drained.set()

    def on_shutdown(**_: Any) -> None:
        stopping.set()
        _start_thread(drain, "drain")
        _start_thread(_leave_in_any_case, "last-resort", runtime)

    _drain_on_signals(app)
    _forget_lost_connections(app)
    celery_signals.worker_shutting_down.connect(on_shutdown, weak=False)
    celery_signals.setup_logging.connect(_keep_logs, weak=False)
    _start_thread(_stop_when_dead, "watch-engine", runtime)
    queues = [tier_queue(tier) for tier in runtime.tiers] + [worker_queue(runtime.id)]
    app.worker_main(
        [
            "--quiet",
            "worker",
            "--pool=threads",
            f"--concurrency={runtime.places}",
            f"--queues={','.join(queues)}",
            f"--hostname={runtime.id}@%h",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )
    # Celery waits for its own threads; the runtime may work on others (the last resort bounds this).
    if stopping.is_set():
        drained.wait()
    runtime.close()
    shutdown()
    end_children()
    return _ENGINE_DEAD_STATUS if runtime.dead.is_set() else 0


def end_children() -> None:
    """Kill every process this one started and that is still there: a hung engine core does not end by being asked."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _drain_on_signals(app: Celery) -> None:
    """Drain on each of these signals, from now on.

    Celery's own handlers come late: the process claims by then, and what is not handled would end it with its jobs in
    hand. And those for SIGQUIT and SIGHUP would end tasks, which the threads pool cannot, or restart the process; neither
    drains, and the process would go on claiming for as long as anything waits.
    """
    early = threading.Event()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    def note(*_: Any) -> None:
        early.set()

    def terminate(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    class Signals(bootsteps.StartStopStep):
        # Started after Celery has set its handlers, and on the main thread.
        def start(self, parent: Any) -> None:
            del parent
            signal.signal(signal.SIGQUIT, terminate)
            signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else terminate)
            if early.is_set():
                terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, *(() if ignored else (signal.SIGHUP,))):
        signal.signal(number, note)
    app.steps["worker"].add(Signals)


def _forget_lost_connections(app: Celery) -> None:
    """Take a lost connection's callback out of the event loop before the next connection is made.

    kombu 5.7 leaves it there: it is called at every turn from then on, and holds all that belonged to the connection, some
    25 KB a time.
    """

    class Ticks(bootsteps.StartStopStep):
        requires = ("celery.worker.consumer.connection:Connection",)

        # Also when the connection is lost: all steps of the consumer are stopped, and then started again.
        def stop(self, parent: Any) -> None:
            parent.hub.on_tick.clear()

    app.steps["consumer"].add(Ticks)


def _keep_logs(**_: Any) -> None:
    """Keep the process's own logging: Celery would set its level, WARNING, for everything. That it is called is enough."""
    logging.getLogger("celery").setLevel(logging.WARNING)


def _start_thread(target: Callable[..., None], name: str, *args: Any) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


def _stop_when_dead(runtime: Runtime) -> None:
    runtime.dead.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _leave_in_any_case(runtime: Runtime) -> None:
    wait = 0.0 if runtime.dead.is_set() else runtime.settings.jobs.drain_seconds
    time.sleep(wait + _GRACE_SECONDS)
    log.error("left_without_waiting", worker=runtime.id, in_flight=runtime.in_flight)
    end_children()
    os._exit(_ENGINE_DEAD_STATUS if runtime.dead.is_set() else 75)
