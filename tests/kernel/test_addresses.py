"""Which addresses a tenant's request may go to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from cortex_plane.kernel.addresses import Allowed, is_host, is_public
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.settings import load

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "99.255.255.255", "100.63.255.255", "100.128.0.0", "126.255.255.255",
    "128.0.0.1", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.88.98.255",
    "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "198.51.99.255", "203.0.112.255", "203.0.114.0",
    "223.255.255.255", "11.0.0.0", "9.255.255.255", "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1",
    "2400::1", "2620:fe::fe", "2001:200::1", "2003::1", "3ffd::1",
]  # fmt: skip
PRIVATE = [
    # this host, private networks, carrier NAT, loopback, link-local with every cloud's metadata
    "0.0.0.0", "0.1.2.3", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.100.100.200",
    "100.127.255.255", "127.0.0.1", "127.1.2.3", "127.255.255.255", "169.254.0.0", "169.254.169.254", "169.254.170.2",
    "169.254.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255",
    # protocol assignments, documentation, 6to4 relays, benchmarks
    "192.0.0.0", "192.0.0.8", "192.0.0.9", "192.0.0.170", "192.0.0.192", "192.0.0.255", "192.0.2.1", "192.88.99.1",
    "198.18.0.0", "198.19.255.255", "198.51.100.7", "203.0.113.7",
    # multicast, reserved, broadcast
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    # the same in IPv6
    "::", "::1", "::2", "100::1", "fc00::1", "fd00:ec2::254", "fdff::1", "fe80::1", "febf::1", "fec0::1", "ff02::1",
    "ff0e::1", "fe80::1%eth0", "2606:4700::1%eth0", "2001:db8::1", "3fff::1", "3fff:fff::1", "3ffe::1", "2001:2::1",
    "2001:10::1", "2001:20::1", "2001:1::1", "2001:1ff:ffff::1", "4000::1", "5f00::1", "8000::1", "1fff::1",
    # IPv4 inside IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo; whatever the address inside
    "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b::808:808", "64:ff9b:1::1", "64:ff9b:1:7f00:1::", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    "2002:808:808::1", "2001::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:0:808:808::1",
]  # fmt: skip


@pytest.mark.proves("D.142")
@pytest.mark.parametrize("text", PUBLIC)
def test_the_public_internet_is_reached(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.proves("D.142")
@pytest.mark.parametrize("text", PRIVATE)
def test_nothing_else_is(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("example.com", True),
        ("a", True),
        ("_dmarc.example.com", True),
        ("xn--bcher-kva.example", True),
        ("1.2.3.4", True),
        ("::1", True),
        ("3.example", True),
        # What `inet_aton` would take for an address.
        ("127.1", False),
        ("2130706433", False),
        ("0x7f000001", False),
        ("0x7f.1", False),
        ("0177.0.0.1", False),
        ("127.0.0.1.", False),
        ("1.2.3.256", False),
        ("example.0x1", False),
        ("example.5", False),
        ("example.com.", False),
        ("-example.com", False),
        ("exa mple.com", False),
        ("example..com", False),
        ("", False),
        ("bücher.example", False),
        ("fe80::1%eth0", False),
        ("a" * 64 + ".example", False),
        (".".join(["a" * 60] * 5), False),
        ("localhost\n", False),
    ],
)
def test_a_host_is_a_name_or_an_address_as_it_is_usually_written(text: str, is_one: bool) -> None:
    assert is_host(text) == is_one


@pytest.mark.proves("D.142")
def test_a_listed_host_is_reached_wherever_it_is_and_nothing_beside_it() -> None:
    allowed = Allowed.parse(" LocalHost:8080 , hooks.internal,127.0.0.1:9000,[::1]:9000,::2 ")
    loopback = ip_address("127.0.0.1")
    assert allowed.reach("localhost", 8080, loopback)
    assert allowed.reach("LOCALHOST", 8080, loopback)
    assert not allowed.reach("localhost", 8081, loopback)
    assert not allowed.reach("evil.localhost", 8080, loopback)
    assert allowed.reach("hooks.internal", 1, ip_address("10.0.0.1"))
    assert not allowed.reach("other.internal", 1, ip_address("10.0.0.1"))
    assert allowed.reach("127.0.0.1", 9000, loopback)
    assert not allowed.reach("127.0.0.1", 9001, loopback)
    assert not allowed.reach("evil.example", 9000, loopback), "the address is listed as a host, not as a range"
    assert allowed.reach("::1", 9000, ip_address("::1"))
    assert allowed.reach("0:0:0:0:0:0:0:2", 5, ip_address("::2"))
    assert allowed.reach("example.com", 443, ip_address("1.1.1.1"))


@pytest.mark.proves("D.142")
def test_a_listed_range_is_reached_under_any_name() -> None:
    allowed = Allowed.parse("10.1.0.0/16, fd00::/8")
    assert allowed.reach("evil.example", 443, ip_address("10.1.2.3"))
    assert not allowed.reach("evil.example", 443, ip_address("10.2.2.3"))
    assert allowed.reach("evil.example", 443, ip_address("fd12::1"))
    assert allowed.host("10.1.2.3", 80)
    assert not allowed.host("evil.example", 80)


@pytest.mark.parametrize(
    "entry",
    [
        "10.0.0.1/8",
        "300.0.0.0/8",
        "localhost:0",
        "localhost:99999",
        "localhost:",
        "a b",
        "http://localhost",
        "[::1",
        "*",
    ],
)
def test_what_is_no_entry_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is no "):
        Allowed.parse(f"example.com,{entry}")


def test_the_setting_is_refused_at_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().webhook_allow == ""
    monkeypatch.setenv("CORTEX_WEBHOOK_ALLOW", "localhost:9000,10.0.0.0/8")
    assert Allowed.parse(load().webhook_allow).host("localhost", 9000)
    monkeypatch.setenv("CORTEX_WEBHOOK_ALLOW", "http://localhost")
    with pytest.raises(SetupError, match="CORTEX_WEBHOOK_ALLOW"):
        load()


def test_without_entries_nothing_is_listed() -> None:
    assert Allowed.parse("") == Allowed.parse(" , ") == Allowed()
