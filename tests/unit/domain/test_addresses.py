"""Which URLs and addresses a webhook may be sent to."""

from __future__ import annotations

import ipaddress
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.addresses import Refused, check_address, is_public, parse_target

PRIVATE_V4 = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32",
)  # fmt: skip
PRIVATE_V6 = (
    "::/128", "::1/128", "::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:2::/48",
    "2001:10::/28", "2001:20::/28", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10",
    "fec0::/10", "ff00::/8",
)  # fmt: skip
PUBLIC = ("1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::1")


def inside(networks: tuple[str, ...]) -> st.SearchStrategy[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    return st.sampled_from(networks).flatmap(
        lambda network: st.ip_addresses(network=network)  # type: ignore[arg-type]
    )


@given(inside(PRIVATE_V4 + PRIVATE_V6))
def test_no_address_of_a_special_network_is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert not is_public(address)
    with pytest.raises(Refused):
        check_address(address, is_allowed=False)


@given(st.ip_addresses(v=4))
def test_no_form_that_holds_an_ipv4_address_is_public(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    for network in ("::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::"):
        assert not is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address(network)) + number))
    assert not is_public(ipaddress.IPv6Address((0x2002 << 112) + (number << 80)))
    assert not is_public(ipaddress.IPv6Address((0x20010000 << 96) + number))


@given(st.ip_addresses(v=6))
def test_what_is_public_is_global_unicast(address: ipaddress.IPv6Address) -> None:
    if is_public(address):
        assert address in ipaddress.ip_network("2000::/3")
        assert address.is_global
        assert not address.is_private


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_a_zone_is_never_public() -> None:
    assert not is_public(ipaddress.ip_address("2606:4700::1111%eth0"))


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "100.64.0.1", "::1", "fd00::1", "::ffff:10.0.0.1"])
def test_an_allowed_host_may_be_on_a_private_network(address: str) -> None:
    check_address(ipaddress.ip_address(address), is_allowed=True)


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254", "0.0.0.0", "::", "224.0.0.1", "ff02::1"],
)
def test_not_even_an_allowed_host_may_be_a_metadata_service(address: str) -> None:
    with pytest.raises(Refused):
        check_address(ipaddress.ip_address(address), is_allowed=True)


def test_a_plain_url() -> None:
    target = parse_target("https://Hooks.Example.com/a/b?c=d")
    assert (target.scheme, target.host, target.port, target.path) == ("https", "hooks.example.com", 443, "/a/b?c=d")
    assert target.authority == "hooks.example.com"
    assert parse_target("https://example.com:8443", ports=(443, 8443)).authority == "example.com:8443"
    assert parse_target("https://example.com?x=1").path == "/?x=1"
    assert parse_target("https://xn--bcher-kva.example/").host == "xn--bcher-kva.example"
    assert parse_target("https://[2606:4700::1111]/").authority == "[2606:4700::1111]"


def test_an_allowed_host_by_name_and_by_port() -> None:
    allowed = ("hooks.internal", "10.0.0.5:9000")
    assert parse_target("http://hooks.internal:8080/x", allowed_hosts=allowed).is_allowed
    assert parse_target("http://10.0.0.5:9000/", allowed_hosts=allowed).is_allowed
    for url in (
        "http://10.0.0.5:9001/",
        "https://10.0.0.5/",
        "http://other.internal/",
        "https://a.hooks.internal:8080/",
    ):
        with pytest.raises(Refused):
            parse_target(url, allowed_hosts=allowed)


@given(st.text(alphabet=string.printable + "…。１⒈Ｌ", max_size=60))
def test_whatever_is_written_is_refused_or_read_strictly(rest: str) -> None:
    """Nothing else is raised, and what is accepted goes to the host that stands in the URL."""
    url = "https://" + rest
    try:
        target = parse_target(url)
    except Refused:
        return
    assert url.lower().startswith((f"https://{target.host}", f"https://[{target.host}"))
    assert all(0x21 <= ord(char) <= 0x7E for char in target.path + target.authority)
    assert "@" not in target.authority


@given(st.integers(0, 2**32 - 1))
def test_numbers_are_never_hosts(number: int) -> None:
    quad = [str(part) for part in number.to_bytes(4, "big")]
    octal = ".".join(f"0{int(part):o}" for part in quad)
    hexadecimal = ".".join(hex(int(part)) for part in quad)
    for host in (str(number), hex(number), f"0{number:o}", octal, hexadecimal, f"{quad[0]}.{number & 0xFFFFFF}"):
        with pytest.raises(Refused):
            parse_target(f"https://{host}/")
