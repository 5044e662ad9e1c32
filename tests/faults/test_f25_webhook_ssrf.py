"""F25: a tenant's URLs try to reach what is inside, and receivers try to hold the sender. And webhooks under kills."""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import col, select

from service.domain.addresses import Refused, parse_target
from service.domain.webhooks import Event, Failure, Outcome
from service.store import outbox, webhooks
from service.store.tables import DEFAULT_TENANT, WebhookDeliveryRow
from tests.faults.conftest import MakeRig
from tests.faults.processes import until
from tests.faults.report import Row
from tests.faults.rig import Fake
from tests.fixtures.receiver import Answer, Receiver, status, write_certificate
from workers.webhooks.sending import Limits, Sender, connect

PUBLIC = "93.184.215.14"
INNER = (
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
    "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.88.99.1",
)  # fmt: skip


def numbers(inner: str) -> Iterator[str]:
    """Every way to write an IPv4 address that some parser or resolver reads as one."""
    value = int(ipaddress.IPv4Address(inner))
    a, b, c, d = value.to_bytes(4, "big")
    yield from (inner, str(value), hex(value), f"0{value:o}", f"{a}.{value & 0xFFFFFF}", f"{a}.{b}.{c * 256 + d}")
    yield from (f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}", f"0x{value:08X}", f"{inner}.")
    yield from (
        f"{a:03d}.{b:03d}.{c:03d}.{d:03d}",
        f"{a + 256}.{b}.{c}.{d}",
        f"%31{inner[1:]}",
        f"{inner}%00.example.com",
    )
    # Fullwidth and circled digits, and the ideographic full stop, which IDNA folds to ASCII.
    yield inner.translate({ord(str(i)): 0xFF10 + i for i in range(10)})
    yield inner.replace(".", "。")
    yield inner.translate({ord(str(i)): 0x2460 + i - 1 for i in range(1, 10)})


def embeddings(inner: str) -> Iterator[str]:
    """Every way to put an IPv4 address into an IPv6 one."""
    value = int(ipaddress.IPv4Address(inner))
    high, low = value >> 16, value & 0xFFFF
    yield from (f"::ffff:{inner}", f"::{inner}", f"::ffff:0:{inner}", f"64:ff9b::{inner}", f"64:ff9b:1::{inner}")
    yield from (f"2002:{high:x}:{low:x}::1", f"2001:0:{high:x}:{low:x}::1", f"::ffff:{high:x}:{low:x}")


def corpus() -> list[str]:
    """URLs of which none may be connected to."""
    urls: list[str] = []
    for inner in INNER:
        urls += [f"https://{host}/" for host in numbers(inner)]
        urls += [f"https://[{host}]/" for host in embeddings(inner)]
    urls += [
        f"https://[{host}]/" for host in ("::1", "::", "fc00::1", "fd00:ec2::254", "fe80::1", "ff02::1", "fec0::1")
    ]
    urls += ["https://[fe80::1%25eth0]/", "https://[::1", "https://::1/", "https://[v1.x]/", "https://[]/"]
    names = ("localhost", "LOCALHOST", "localhost.", "metadata", "redis", "postgres", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "local­host")
    urls += [f"https://{name}/" for name in names]
    for port in (0, 22, 25, 80, 2375, 5432, 6379, 8000, 9200, 65_535, 65_536, 99_999):
        urls.append(f"https://hooks.example.com:{port}/")
    urls += [
        "https://hooks.example.com:+443/",
        "https://hooks.example.com:443x/",
        "https://hooks.example.com:/",
        "https://hooks.example.com:/:22",
    ]
    urls += [f"https://{user}@hooks.example.com/" for user in ("a", "a:b", "127.0.0.1", ":", "%40", "a@b")]
    urls += ["https://127.0.0.1\\@hooks.example.com/", "https://hooks.example.com\\@127.0.0.1/"]
    urls += ["https://hooks.example.com#@127.0.0.1/", "https://hooks.example.com/#x", "https:/127.0.0.1/"]
    schemes = ("http", "ftp", "file", "gopher", "dict", "unix", "ldap", "javascript", "data", "jar", "HTTP")
    urls += [f"{scheme}://hooks.example.com/" for scheme in schemes]
    urls += ["//hooks.example.com/", "hooks.example.com", "", "https://", "https:///", "https://?x", "https://."]
    urls += ["https://hooks.example.com/\r\nX: y", "https://hooks.example.com/ x", "https://hooks.exa\tmple.com/"]
    urls += ["https://hooks.example.com/\0", "\thttps://hooks.example.com/", "https://hooks.example.com/é"]
    urls += ["https://a..example.com/", "https://-a.example.com/", f"https://{'a' * 64}.example.com/"]
    urls += [f"https://{'a.' * 130}com/", f"https://hooks.example.com/{'a' * 3000}", "https://*.example.com/"]
    return urls


def test_f25_webhook_ssrf(row: Row, tmp_path: Path, long: bool) -> None:
    """Whatever the URL or the name server says, no inner address is connected to, and no answer holds the sender."""
    certificate = write_certificate(tmp_path, "hooks.example.com")
    tls = ssl.create_default_context(cafile=str(certificate))
    inside = Receiver(certificate)
    connected: list[str] = []

    def connecting(address: str, port: int, timeout: float) -> socket.socket:
        connected.append(address)
        return connect("127.0.0.1", inside.port, timeout)

    def sender(*answers: list[str], seconds: float = 0.5) -> Sender:
        left = [*answers]

        def resolving(host: str, port: int) -> list[str]:
            return left.pop(0) if len(left) > 1 else left[0]

        return Sender(Limits((), (443, 8443), seconds, 65_536), resolve=resolving, connect=connecting, tls=tls)

    missed: list[tuple[object, Outcome]] = []
    tried = 0

    def check(asked: object, outcome: Outcome, expected: Failure) -> None:
        nonlocal tried
        tried += 1
        if outcome.failure != expected:
            missed.append((asked, outcome))

    # The URL itself; the name server would lead anywhere.
    for url in corpus():
        for answers in ([[PUBLIC]], [["127.0.0.1"]]):
            check(url, sender(*answers).send(url, "{}", {}), Failure.URL_REFUSED)
        with pytest.raises(Refused):
            parse_target(url, ports=(443, 8443))
    # A good URL whose name leads inside: alone, hidden among public addresses, in every embedding, or nowhere.
    for inner in INNER:
        for found in (inner, *embeddings(inner)):
            for answer in ([found], [PUBLIC, found], [*[PUBLIC] * 40, found]):
                check(answer, sender(answer).send("https://hooks.example.com/", "{}", {}), Failure.ADDRESS_REFUSED)
    for answer, failure in (
        ([], Failure.NOT_RESOLVED),
        (["nonsense"], Failure.ADDRESS_REFUSED),
        (["fe80::1%eth0"], Failure.ADDRESS_REFUSED),
        (["2606:4700::1111%1"], Failure.ADDRESS_REFUSED),
    ):
        check(answer, sender(answer).send("https://hooks.example.com/", "{}", {}), failure)
    assert not missed
    assert not connected
    assert inside.connections == 0

    # A name that changes between the look and the connection: what was checked is what is connected to.
    rebinding = sender([PUBLIC], ["127.0.0.1"], seconds=3.0)
    assert rebinding.send("https://hooks.example.com/", "{}", {}).failure is None
    assert connected == [PUBLIC]
    check("the second look", rebinding.send("https://hooks.example.com/", "{}", {}), Failure.ADDRESS_REFUSED)
    assert connected == [PUBLIC]

    cut, slowest = hostile_answers(inside, sender([PUBLIC], seconds=0.5))
    assert set(connected) == {PUBLIC}
    inside.close()
    assert not missed
    row.times = tried + cut
    row.figures |= {
        "refused": tried - len(missed),
        "share (goal 1)": (tried - len(missed)) / tried,
        "hostile answers": cut,
        "slowest s (limit 0.5)": slowest,
    }


def silent(connection: socket.socket) -> None:
    time.sleep(2)


def hostile_answers(inside: Receiver, sender: Sender) -> tuple[int, float]:
    """Answers that redirect inside, drip, flood, or never come. Returns how many, and the longest any held the sender."""

    def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Callable[[socket.socket], None]:
        def answer(connection: socket.socket) -> None:
            connection.sendall(head)
            while True:
                connection.sendall(piece)
                time.sleep(pause)

        return answer

    ok = b"HTTP/1.1 200 OK\r\n"
    cases: list[tuple[Answer, Outcome]] = [
        (status(code, f"Location: {to}"), Outcome(Failure.REDIRECTED, code))
        for code in (300, 301, 302, 303, 307, 308)
        for to in ("https://127.0.0.1/", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "/")
    ]
    cases += [
        (endless(ok + b"X: ", b"x", 0.02), Outcome(Failure.TIMED_OUT)),
        (endless(b"", b"H", 0.02), Outcome(Failure.TIMED_OUT)),
        (silent, Outcome(Failure.TIMED_OUT)),
        (endless(ok + b"X: ", b"x" * 8192), Outcome(Failure.INVALID_RESPONSE)),
        (endless(ok, b"X-Y: z\r\n" * 100), Outcome(Failure.INVALID_RESPONSE)),
        (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), Outcome(Failure.INVALID_RESPONSE)),
        (endless(ok + b"Content-Length: 99999999\r\n\r\n", b"x", 0.02), Outcome(None, 200)),
        (endless(ok + b"\r\n", b"x" * 8192), Outcome(None, 200)),
        (endless(ok + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n"), Outcome(None, 200)),
        (endless(ok + b"Content-Encoding: gzip\r\n\r\n", b"\x1f\x8b\x08" * 999), Outcome(None, 200)),
        (b"* OK IMAP4 ready\r\n", Outcome(Failure.INVALID_RESPONSE)),
        (b"\x00" * 5000, Outcome(Failure.INVALID_RESPONSE)),
    ]
    slowest = 0.0
    for answer, expected in cases:
        inside.answer = answer
        before, started = inside.connections, time.monotonic()
        assert sender.send("https://hooks.example.com/", "{}", {}) == expected
        slowest = max(slowest, time.monotonic() - started)
        assert inside.connections == before + 1
    assert slowest < 1.5
    return len(cases), slowest


@pytest.mark.timeout(280)
def test_f25_webhooks_of_killed_workers(make_rig: MakeRig, database_url: str, row: Row, long: bool) -> None:
    """Workers are killed while they send and receivers fail half the time: every end is told, under one id each."""
    receiver = Receiver()
    rig = make_rig(
        database_url,
        fake=Fake(output_tokens=4, output_tokens_per_second=40.0),
        webhooks={
            "allowed_hosts": ["127.0.0.1"], "first_pause_seconds": 0.2, "longest_pause_seconds": 0.5,
            "max_attempts": 100, "poll_seconds": 0.2,
        },
    )  # fmt: skip
    try:
        with rig.database.write() as session:
            now = rig.database.now(session)
            events = [Event.QUESTION_SUCCEEDED]
            webhooks.create(session, now, DEFAULT_TENANT, url=receiver.url, events=events, most=9)

        def sometimes(connection: socket.socket) -> None:
            time.sleep(0.05)
            connection.sendall(status(200 if rig.random.random() < 0.5 else 503))

        receiver.answer = sometimes
        rig.start_workers(2)
        for _ in range(20 if long else 3):
            rig.ask(10)
            victim = rig.random.choice(rig.running)
            until(lambda: bool(receiver.messages), "the first message")
            time.sleep(rig.random.uniform(0.0, 0.6))
            victim.kill()
            row.times += 1
            rig.start_worker()
        rig.settle()

        # A sender that was killed leaves a claim of a minute, of which ten seconds are waited for here.
        def left() -> int:
            with rig.database.write() as session:
                now = rig.database.now(session)
                pending = session.exec(
                    select(WebhookDeliveryRow).where(col(WebhookDeliveryRow.state) == "pending")
                ).all()
                for delivery in pending:
                    due = delivery.next_attempt_at
                    if due is not None and timedelta(seconds=5) < due - now < timedelta(seconds=50):
                        delivery.next_attempt_at = now
                        session.add(delivery)
                return len(pending)

        until(lambda: left() == 0, "every message's end", timeout=90, pause=0.3)
        with rig.database.read() as session:
            all_ = session.exec(select(WebhookDeliveryRow)).all()
            assert not outbox.has_unannounced(session)
        assert {delivery.state for delivery in all_} == {"delivered"}
        succeeded = {r.question_id for r in rig.rows() if r.state == "succeeded"}
        assert {delivery.question_id for delivery in all_} == succeeded
        assert len(all_) == len(succeeded) == len(rig.accepted)
        heard = {m.headers["webhook-id"]: json.loads(m.body)["data"]["id"] for m in receiver.messages}
        assert set(heard) == {delivery.id for delivery in all_}
        assert set(heard.values()) == succeeded
        row.figures |= {
            "messages": len(heard),
            "attempts": len(receiver.messages),
            "senders lost": sum(e["error_code"] == "worker_lost" for delivery in all_ for e in delivery.log),
        }
    finally:
        receiver.close()
