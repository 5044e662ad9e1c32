"""Which addresses a webhook may be sent to. Pure: nothing is resolved or connected here.

The service sits inside somebody's network, and a tenant chooses the URL, so every address that is not on the public
internet is refused: otherwise a webhook would reach databases, metadata services and whatever else trusts that network
(server-side request forgery). The URL is read strictly: what other programs would read differently is refused rather than
interpreted, and the sender connects to exactly what was checked.

Source: IANA special-purpose address registries (RFC 6890), RFC 6052 (NAT64), RFC 3056 (6to4), RFC 4380 (Teredo).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL_CHARS = 2048
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:.]+\]|[^/?#\[\]:@\\]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_MAX_NAME_CHARS = 253

# Not public beside what ``ipaddress`` knows: multicast counts as global there, and 6to4 relays lead into other networks.
_REFUSED_V4 = [ipaddress.ip_network(n) for n in ("192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4")]
# Only global unicast is public. That leaves out ::1, ULA, link-local, multicast, IPv4-mapped and -compatible addresses,
# and NAT64 (64:ff9b::/96 and 64:ff9b:1::/48).
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")
# Teredo and other protocol assignments, documentation, and 6to4, which holds an IPv4 address.
_REFUSED_V6 = [ipaddress.ip_network(n) for n in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]
# Never, not even for a host that the operator allows: metadata services of clouds answer on link-local addresses.
_NEVER = [
    ipaddress.ip_network(n)
    for n in ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "::/128", "fe80::/10", "ff00::/8")
]
_METADATA = ipaddress.ip_address("fd00:ec2::254")


class Refused(ValueError):
    """A URL or address that no webhook is sent to; the text says why and is shown to the tenant."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL, in the parts the sender needs.

    Attributes:
        scheme: ``https``; ``http`` only for a host that the operator allows.
        host: Lower-case name, or an address without brackets.
        port: TCP port.
        path: Path and query as they go on the request line.
        is_allowed: The operator named this host: it may be on a private network.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str
    is_allowed: bool

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.scheme) else f"{host}:{self.port}"


def parse_target(url: str, *, allowed_hosts: Collection[str] = (), ports: Collection[int] = (443,)) -> Target:
    """Read a webhook's URL.

    Args:
        url: As the tenant gave it.
        allowed_hosts: Hosts (``name`` or ``name:port``) that the operator allows whatever their addresses are, also
            over plain http.
        ports: Ports of every other host.

    Raises:
        Refused: It is not one that a webhook may be sent to.
    """
    if len(url) > MAX_URL_CHARS:
        raise Refused(f"has {len(url)} characters; {MAX_URL_CHARS} are accepted")
    if not url.isascii() or any(not 0x21 <= ord(char) <= 0x7E for char in url):
        raise Refused(
            "must be printable ASCII without spaces: write other names in their xn-- form, and %-encode the rest"
        )
    if "@" in re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]:
        raise Refused("must not hold a user name or password")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise Refused("is not an https URL of the form https://host/path without a fragment")
    scheme: Literal["http", "https"] = "https" if parts["scheme"].lower() == "https" else "http"
    port = int(parts["port"]) if parts["port"] else _default_port(scheme)
    host, literal = _host(parts["host"].lower())
    named = {name.lower() for name in allowed_hosts}
    is_allowed = host in named or f"{host}:{port}" in named or f"[{host}]:{port}" in named
    if not is_allowed:
        _check_public(scheme, host, port, ports, is_name=literal is None)
    if not 0 < port < 65_536:
        raise Refused(f"names port {port}, which does not exist")
    if literal is not None:
        check_address(literal, is_allowed=is_allowed)
    return Target(scheme, host, port, (parts["path"] or "/") + (parts["query"] or ""), is_allowed)


def _check_public(scheme: str, host: str, port: int, ports: Collection[int], *, is_name: bool) -> None:
    if scheme != "https":
        raise Refused("must begin with https://")
    if port not in ports:
        raise Refused(f"names port {port}; accepted are {', '.join(map(str, sorted(ports)))}")
    if is_name and "." not in host:
        raise Refused(f"names {host!r}, which is not a public host name")


def check_address(address: Address, *, is_allowed: bool) -> None:
    """See whether a webhook may be sent to an address.

    Args:
        address: One that the host resolved to.
        is_allowed: The operator named the host, so private networks are meant.

    Raises:
        Refused: It may not.
    """
    if not (_is_connectable(address) if is_allowed else is_public(address)):
        # Which address it was is not said: that would tell the tenant what names of the inner network resolve to.
        raise Refused("leads to an address that is not on the public internet")


def is_public(address: Address) -> bool:
    """Whether an address is unicast on the public internet and holds no other address inside."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in network for network in _REFUSED_V4)
    if address.scope_id is not None or address not in _PUBLIC_V6:
        return False
    return address.is_global and not any(address in network for network in _REFUSED_V6)


def _is_connectable(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_connectable(address.ipv4_mapped)
        if address == _METADATA:
            return False
    return not any(address in network for network in _NEVER)


def _host(written: str) -> tuple[str, Address | None]:
    """The host, and its address when it is written as one in its only canonical form."""
    if written.startswith("["):
        try:
            address = ipaddress.IPv6Address(written[1:-1])
        except ValueError:
            raise Refused("has an IPv6 address that is not valid") from None
        return str(address), address
    labels = written.split(".")
    # Resolvers read 2130706433, 0x7f.1 and 0177.0.0.1 as addresses; so does every name whose last label is a number.
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        try:
            return written, ipaddress.IPv4Address(written)
        except ValueError:
            raise Refused("has an IPv4 address that is not written as four decimal numbers") from None
    if len(written) > _MAX_NAME_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise Refused(f"names {written!r}, which is not a host name")
    return written, None


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
