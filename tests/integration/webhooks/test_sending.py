"""One attempt, against real sockets: what is signed, who is connected to, and what a receiver may do."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from service.domain.webhooks import Failure
from service.store.webhooks import Claimed, new_secret
from tests.fixtures.receiver import Receiver, status, write_certificate
from workers.webhooks.sending import Limits, Sender, connect, signed_headers

PUBLIC = "93.184.215.14"
BODY = '{"type":"ping"}'


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls"), "hooks.example.com", "127.0.0.1")


@pytest.fixture
def receiver(certificate: Path) -> Iterator[Receiver]:
    opened = Receiver(certificate)
    yield opened
    opened.close()


class Network:
    """A resolver, and connections that say they go to a public address and end at the receiver."""

    def __init__(self, receiver: Receiver, *answers: list[str]) -> None:
        self.receiver = receiver
        self.answers = list(answers) or [[PUBLIC]]
        self.asked: list[str] = []
        self.connected: list[str] = []

    def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        self.connected.append(address)
        return connect("127.0.0.1", self.receiver.port, timeout)


@pytest.fixture
def make_sender(certificate: Path, receiver: Receiver) -> Callable[..., tuple[Sender, Network]]:
    tls = ssl.create_default_context(cafile=str(certificate))

    def make(*answers: list[str], seconds: float = 2.0, most: int = 65_536) -> tuple[Sender, Network]:
        network = Network(receiver, *answers)
        limits = Limits((), (443, 8443), seconds, most)
        return Sender(limits, resolve=network.resolve, connect=network.connect, tls=tls), network

    return make


MakeSender = Callable[..., tuple[Sender, Network]]


def claimed(*secrets: str, at: dt.datetime | None = None) -> Claimed:
    when = at or dt.datetime.now(dt.UTC)
    return Claimed("msg_1", 1, 1, "t", "wh_1", "wh_1", "https://hooks.example.com/hook", BODY, secrets, when)


def test_the_message_is_verified_with_the_library(make_sender: MakeSender, receiver: Receiver) -> None:
    old, new, other = new_secret(), new_secret(), new_secret()
    sender, network = make_sender()
    outcome = sender.send("https://hooks.example.com/hook?token=x", BODY, signed_headers(claimed(new, old)))
    assert (outcome.failure, outcome.status_code) == (None, 200)
    message = receiver.messages[0]
    assert message.line == "POST /hook?token=x HTTP/1.1"
    assert message.headers["host"] == message.server_name == "hooks.example.com"
    assert message.headers["content-type"] == "application/json"
    for secret in (new, old):
        assert Webhook(secret).verify(message.body, message.headers) == {"type": "ping"}
    for tampered in (message.body + b" ", message.body.replace(b"ping", b"pong")):
        with pytest.raises(WebhookVerificationError):
            Webhook(new).verify(tampered, message.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(message.body, message.headers)
    assert network.connected == [PUBLIC]


def test_an_old_message_is_not_valid_any_more() -> None:
    secret = new_secret()
    headers = signed_headers(claimed(secret, at=dt.datetime.now(dt.UTC) - dt.timedelta(minutes=6)))
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(secret).verify(BODY, headers)


def test_a_name_is_resolved_once_and_the_checked_address_is_connected(make_sender: MakeSender) -> None:
    sender, network = make_sender([PUBLIC], ["127.0.0.1"])
    assert sender.send("https://hooks.example.com/", BODY, {}).failure is None
    assert network.asked == ["hooks.example.com"]
    assert network.connected == [PUBLIC]
    assert sender.send("https://hooks.example.com/", BODY, {}).failure == Failure.ADDRESS_REFUSED
    assert network.connected == [PUBLIC]


def test_one_private_address_among_public_ones_refuses_all(make_sender: MakeSender) -> None:
    sender, network = make_sender([*(f"8.8.8.{i}" for i in range(30)), "10.0.0.1"])
    assert sender.send("https://hooks.example.com/", BODY, {}).failure == Failure.ADDRESS_REFUSED
    assert network.connected == []


def test_the_next_address_is_tried_when_one_refuses_the_connection(receiver: Receiver, certificate: Path) -> None:
    tried: list[str] = []

    def connecting(address: str, port: int, timeout: float) -> socket.socket:
        tried.append(address)
        if len(tried) == 1:
            raise ConnectionRefusedError
        return connect("127.0.0.1", receiver.port, timeout)

    tls = ssl.create_default_context(cafile=str(certificate))
    limits = Limits((), (443,), 2.0, 65_536)
    sender = Sender(limits, resolve=lambda _host, _port: ["2606:4700::1111", PUBLIC], connect=connecting, tls=tls)
    assert sender.send("https://hooks.example.com/", BODY, {}).failure is None
    assert tried == ["2606:4700::1111", PUBLIC]


def test_no_resolution_is_a_refusal(make_sender: MakeSender) -> None:
    sender, network = make_sender([])
    assert sender.send("https://hooks.example.com/", BODY, {}).failure == Failure.NOT_RESOLVED
    assert network.connected == []


def test_a_certificate_for_another_name_is_refused(make_sender: MakeSender, receiver: Receiver) -> None:
    sender, _ = make_sender()
    assert sender.send("https://other.example.com/", BODY, {}).failure == Failure.TLS_FAILED
    assert receiver.messages == []


def test_redirects_are_not_followed(make_sender: MakeSender, receiver: Receiver) -> None:
    receiver.answer = status(307, "Location: https://hooks.example.com/elsewhere")
    sender, _ = make_sender()
    outcome = sender.send("https://hooks.example.com/", BODY, {})
    assert (outcome.failure, outcome.status_code) == (Failure.REDIRECTED, 307)
    assert receiver.connections == 1


def test_proxies_in_the_environment_are_not_used(
    make_sender: MakeSender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    sender, network = make_sender()
    assert sender.send("https://hooks.example.com/", BODY, {}).failure is None
    assert network.connected == [PUBLIC]


def drip(head: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    return answer


def flood(head: bytes, piece: bytes = b"x" * 4096) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return answer


def silent(connection: socket.socket) -> None:
    time.sleep(10)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (silent, Failure.TIMED_OUT),
        (drip(b"HTTP/1.1 200 OK\r\nX: "), Failure.TIMED_OUT),
        (drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"), None),
        (flood(b"HTTP/1.1 200 OK\r\n\r\n"), None),
        (flood(b"HTTP/1.1 500 OK\r\n\r\n"), Failure.REFUSED_BY_RECEIVER),
        (flood(b"HTTP/1.1 200 OK\r\nX: "), Failure.INVALID_RESPONSE),
        (flood(b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n"), Failure.INVALID_RESPONSE),
        (flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), Failure.INVALID_RESPONSE),
        (flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"), None),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Failure.INVALID_RESPONSE),
        (b"HTTP/1.1 99999 X\r\n\r\n", Failure.INVALID_RESPONSE),
        (b"", Failure.INVALID_RESPONSE),
    ],
)
def test_whatever_a_receiver_answers_takes_no_longer_than_it_may(
    make_sender: MakeSender,
    receiver: Receiver,
    answer: bytes | Callable[[socket.socket], None],
    failure: Failure | None,
) -> None:
    receiver.answer = answer
    sender, _ = make_sender(seconds=0.7)
    started = time.monotonic()
    assert sender.send("https://hooks.example.com/", BODY, {}).failure == failure
    assert time.monotonic() - started < 1.5


def test_a_receiver_that_does_not_finish_the_handshake_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        sender = Sender(
            Limits((), (443,), 0.5, 1000),
            resolve=lambda _host, _port: [PUBLIC],
            connect=lambda _address, _port, timeout: connect("127.0.0.1", port, timeout),
        )
        started = time.monotonic()
        assert sender.send("https://hooks.example.com/", BODY, {}).failure == Failure.TIMED_OUT
        assert time.monotonic() - started < 1.5


def test_an_allowed_host_over_plain_http() -> None:
    receiver = Receiver()
    try:
        sender = Sender(Limits((f"127.0.0.1:{receiver.port}",), (443,), 2.0, 1000))
        assert sender.send(receiver.url, BODY, {}).failure is None
        assert receiver.messages[0].headers["host"] == f"127.0.0.1:{receiver.port}"
        assert Sender(Limits((), (443,), 2.0, 1000)).send(receiver.url, BODY, {}).failure == Failure.URL_REFUSED
    finally:
        receiver.close()
