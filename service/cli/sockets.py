"""Listening sockets: made before anything is started, so that a taken port is named at once."""

from __future__ import annotations

import errno
import socket

import psutil

from service.cli.exits import CommandFailed, Exit

_BACKLOG = 2048
_UNREAD_MILLISECONDS = 20_000
"""A client that takes nothing of what was sent for this long is disconnected by the kernel (Linux), also one whose
connection the API has closed: closing waits until what was written is taken."""
_UNSENT_BYTES = 128 * 1024
"""What the kernel takes for a client beyond what is on its way (Linux). Without it that is up to 4 MB for each client that
does not read, and the API works ahead for it; a client that reads is served as fast."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address; port 0 takes a free one.

    Raises:
        CommandFailed: The port is taken, may not be used by this user, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _explained(host, port, error) from error
    listener.set_inheritable(True)
    return listener


def private_address(name: str) -> str:
    """The Unix address of a name (Linux): no file, no port, and gone with whoever listens there."""
    return f"\0longread-{name}"


def listen_privately(name: str) -> socket.socket:
    """A socket on which one process is asked that shares its port with others."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(private_address(name))
    listener.listen()
    return listener


def port_of(listener: socket.socket) -> int:
    """The port a socket is bound to."""
    return int(listener.getsockname()[1])


def free_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return port_of(probe)


def _explained(host: str, port: int, error: OSError) -> CommandFailed:
    if error.errno == errno.EADDRINUSE:
        owner = _owner(port)
        detail = f"Port {port} on {host} is in use{f' by {owner}' if owner else ''}: stop it or choose another --port."
        return CommandFailed(Exit.FAILED, detail, code="port_in_use")
    if error.errno == errno.EACCES:
        detail = f"This user may not listen on port {port}: choose a --port above 1023."
        return CommandFailed(Exit.FAILED, detail, code="port_not_allowed")
    reason = error.strerror or str(error)
    return CommandFailed(Exit.FAILED, f"Cannot listen on {host}:{port}: {reason}.", code="cannot_listen")


def _owner(port: int) -> str | None:
    """Name and pid of the program that listens on a port, when this user may see it."""
    try:
        for connection in psutil.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})" if connection.pid else None
    except psutil.Error:
        # Only the message is poorer: the port is in use all the same.
        return None
    return None


def address(host: str, port: int) -> str:
    """The URL under which this machine reaches a service that listens there."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"
