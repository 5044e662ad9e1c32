"""uvicorn, told to end those who wait: a long poll of a minute must not keep a stopping process for a minute."""

from __future__ import annotations

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services: Services | None = getattr(self._app.state, "services", None)
        if services is not None:
            services.watcher.stop()
        await super().shutdown(sockets)
