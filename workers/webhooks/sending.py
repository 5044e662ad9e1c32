"""One POST to one webhook: the only place where this product connects to an address that a tenant chose.

The name is resolved once, every address it has is checked, and the connection goes to a checked address, with the name
in SNI and Host. There is no proxy, no redirect, and one time limit for all of it; the answer's body is read to be polite
and thrown away. ``http.client`` parses the answer and opens no connection.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from standardwebhooks import Webhook

from service.domain.addresses import Refused, Target, check_address, parse_target
from service.domain.webhooks import Failure, Outcome, of_status
from service.settings import WebhookSettings
from service.store.webhooks import Claimed

Resolve = Callable[[str, int], Sequence[str]]
Connect = Callable[[str, int, float], socket.socket]

_MAX_ADDRESSES = 4
"""Addresses of one host that are tried within the time limit."""


class _CutOff(Exception):
    """The answer is longer than is read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one attempt, from the settings."""

    allowed_hosts: tuple[str, ...]
    ports: tuple[int, ...]
    seconds: float
    response_bytes: int

    @classmethod
    def of(cls, settings: WebhookSettings) -> Limits:
        return cls(
            settings.allowed_hosts, settings.allowed_ports, settings.timeout_seconds, settings.max_response_bytes
        )


def resolve(host: str, port: int) -> list[str]:
    """Every address of a host, as the system's resolver has them.

    Raises:
        OSError: It has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def connect(address: str, port: int, timeout: float) -> socket.socket:
    """A TCP connection to an address; nothing is looked up."""
    return socket.create_connection((address, port), timeout=timeout)


def signed_headers(claimed: Claimed) -> dict[str, str]:
    """The headers of Standard Webhooks, with a signature of each secret that is valid now."""
    signatures = [
        Webhook(secret).sign(msg_id=claimed.id, timestamp=claimed.at, data=claimed.body) for secret in claimed.signing
    ]
    return {
        "webhook-id": claimed.id,
        "webhook-timestamp": str(int(claimed.at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


class Sender:
    """Sends messages.

    Args:
        limits: Bounds of each attempt.
        resolve: Finds the addresses of a host.
        connect: Opens a TCP connection to one of them.
        tls: How receivers prove who they are; None: by the usual authorities (``SSL_CERT_FILE`` names others).
    """

    def __init__(
        self,
        limits: Limits,
        *,
        resolve: Resolve = resolve,
        connect: Connect = connect,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits
        self._resolve = resolve
        self._connect = connect
        self._tls = tls

    def send(self, url: str, body: str, headers: Mapping[str, str]) -> Outcome:
        """POST a message.

        Returns:
            What came of it. Nothing is raised for what a receiver, its name or its certificate does.
        """
        limits = self._limits
        try:
            target = parse_target(url, allowed_hosts=limits.allowed_hosts, ports=limits.ports)
        except Refused:
            return Outcome(Failure.URL_REFUSED)
        try:
            addresses = self._addresses(target)
        except Refused:
            return Outcome(Failure.ADDRESS_REFUSED)
        except (OSError, UnicodeError):
            return Outcome(Failure.NOT_RESOLVED)
        deadline = time.monotonic() + limits.seconds
        try:
            with self._open(target, addresses, deadline) as connection:
                return self._post(connection, target, body.encode(), headers, deadline)
        except TimeoutError:
            return Outcome(Failure.TIMED_OUT)
        except ssl.SSLError:
            return Outcome(Failure.TLS_FAILED)
        except (http.client.HTTPException, _CutOff):
            return Outcome(Failure.INVALID_RESPONSE)
        except OSError:
            return Outcome(Failure.NOT_CONNECTED)
        except ValueError:
            return Outcome(Failure.INVALID_RESPONSE)

    def _addresses(self, target: Target) -> list[str]:
        """The checked addresses of a target.

        Raises:
            Refused: One of them is not to be connected to, and therefore none is.
            OSError: There are none.
        """
        found = self._resolve(target.host, target.port)
        if not found:
            raise OSError("no address")
        for address in found:
            try:
                parsed = ipaddress.ip_address(address)
            except ValueError:
                raise Refused("resolves to something that is not an address") from None
            check_address(parsed, is_allowed=target.is_allowed)
        return list(found[:_MAX_ADDRESSES])

    def _open(self, target: Target, addresses: Sequence[str], deadline: float) -> socket.socket:
        failed: OSError | None = None
        for address in addresses:
            try:
                connection = self._connect(address, target.port, _left(deadline))
            except TimeoutError:
                raise
            except OSError as error:
                failed = error
                continue
            if target.scheme == "http":
                return connection
            try:
                if self._tls is None:
                    self._tls = httpx.create_ssl_context()
                connection.settimeout(_left(deadline))
                return self._tls.wrap_socket(connection, server_hostname=target.host)
            except BaseException:
                connection.close()
                raise
        raise failed or OSError("no address")

    def _post(
        self, connection: socket.socket, target: Target, body: bytes, headers: Mapping[str, str], deadline: float
    ) -> Outcome:
        lines = {
            "Host": target.authority,
            "User-Agent": "longread-webhooks/1",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Accept-Encoding": "identity",
            "Connection": "close",
            **headers,
        }
        head = f"POST {target.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
        connection.settimeout(_left(deadline))
        connection.sendall(head.encode("ascii") + body)
        answer = http.client.HTTPResponse(_Answer(connection, deadline, self._limits.response_bytes), method="POST")  # type: ignore[arg-type]
        try:
            answer.begin()
            outcome = of_status(answer.status)
            try:
                answer.read()
            except (OSError, http.client.HTTPException, ValueError, _CutOff):
                # The status has come and is what counts; a body that drips, breaks off or has no end is cut.
                return outcome
            return outcome
        finally:
            answer.close()


class _Answer:
    """A socket as ``http.client`` reads it, with one deadline and one cap for everything that comes."""

    def __init__(self, connection: socket.socket, deadline: float, most: int) -> None:
        self._raw = _Bounded(connection, deadline, most)

    def makefile(self, _mode: str, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(self._raw, buffer_size=8192)


class _Bounded(io.RawIOBase):
    def __init__(self, connection: socket.socket, deadline: float, most: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._left <= 0:
            raise _CutOff
        self._connection.settimeout(_left(self._deadline))
        got = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= got
        return got


def _left(deadline: float) -> float:
    """Seconds until the deadline.

    Raises:
        TimeoutError: It has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
