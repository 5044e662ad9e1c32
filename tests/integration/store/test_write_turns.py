"""Writes of one process take turns on SQLite, and an urgent one does not wait for all of them."""

from __future__ import annotations

import threading
import time

from service.store.database import Database


def test_an_urgent_write_goes_before_those_that_wait(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    order: list[str] = []
    waiting = threading.Semaphore(0)

    def write(name: str, *, urgent: bool = False) -> None:
        waiting.release()
        with database.write(urgent=urgent):
            order.append(name)
            time.sleep(0.02)

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(40)]
    for thread in threads:
        thread.start()
    for _ in threads:
        waiting.acquire()
    time.sleep(0.05)
    before = len(order)
    write("heartbeat", urgent=True)
    for thread in threads:
        thread.join()
    database.close()
    assert len(order) == 41
    # The one that is being written, and the one whose turn is next.
    assert order.index("heartbeat") <= before + 2 < 20
