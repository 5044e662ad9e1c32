"""uvicorn, told to end those who wait: a long poll of a minute must not keep a stopping process for a minute."""

from __future__ import annotations

import gc
import socket

import uvicorn
from fastapi import FastAPI

from service.api.services import Services


class ApiServer(uvicorn.Server):
    """Serves the application until a signal; then those who wait get a well-formed end and the process leaves.

    Args:
        app: Made by ``create_app``.
        config: uvicorn's.
    """

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is loaded by now stays for good, and every full collection would go through all of it: 188,000 objects,
        # 100 ms in which the event loop stands still (measured beside `bench.uploads`).
        gc.collect()
        gc.freeze()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services: Services | None = getattr(self._app.state, "services", None)
        if services is not None:
            services.watcher.stop()
        await super().shutdown(sockets)
