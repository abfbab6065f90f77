"""Where the plane may send a request that a tenant asked for: to the public internet, and to what the operator listed.

A name is judged by what it resolves to, never by how it looks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from cortex_plane.kernel.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
MAX_URL = 2000
_URL = re.compile(r"[\x21\x23-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# IANA's registry of special addresses, and what reaches one of them by another way. `ipaddress.is_global` is not enough:
# it differs between releases of Python, and passes multicast, 192.0.0.8 and IPv4 addresses that are wrapped in IPv6.
_RESERVED_V4 = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
_UNICAST_V6 = IPv6Network("2000::/3")
"""All that is handed out. Loopback, link-local, unique local, multicast, mapped IPv4 and NAT64 lie outside of it."""
_RESERVED_V6 = tuple(
    IPv6Network(each)
    for each in (
        "2001::/23",  # protocol assignments, Teredo among them: any IPv4 address fits into it
        "2001:db8::/32",
        "2002::/16",  # 6to4: so it does into this
        "3ffe::/16",
        "3fff::/20",
    )
)


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _RESERVED_V4)
    if address.scope_id is not None or address not in _UNICAST_V6 or not address.is_global:
        return False
    return not any(address in network for network in _RESERVED_V6)


def is_host(text: str) -> bool:
    """A name, or an address as it is usually written. `127.1`, `0x7f000001` and the like are neither."""
    if literal(text) is not None:
        return True
    return _HOST.fullmatch(text) is not None and _NUMBER.fullmatch(text.rsplit(".", 1)[-1]) is None


def literal(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return None if isinstance(address, IPv6Address) and address.scope_id is not None else address


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator lists: hosts, with or without a port, and ranges of addresses."""

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Allowed:
        """`localhost:8080, 10.0.0.0/8, [::1]:9000`. Raises ``ValueError`` with the entry that is none."""
        hosts: set[tuple[str, int | None]] = set()
        networks: list[Network] = []
        for entry in filter(None, (each.strip().lower() for each in text.split(","))):
            if "/" in entry:
                try:
                    networks.append(ip_network(entry))
                except ValueError:
                    raise ValueError(f"{entry} is no range of addresses") from None
            else:
                hosts.add(_host_and_port(entry))
        return cls(frozenset(hosts), tuple(networks))

    def host(self, host: str, port: int) -> bool:
        """Whether this very host is listed, or an address that lies in a listed range."""
        address = literal(host)
        name = host.lower() if address is None else str(address)
        return (
            (name, port) in self.hosts
            or (name, None) in self.hosts
            or (address is not None and self._in_range(address))
        )

    def reach(self, host: str, port: int, address: Address) -> bool:
        """Whether a request to this host may go to this address."""
        return is_public(address) or self._in_range(address) or self.host(host, port)

    def _in_range(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self.networks)


def _host_and_port(entry: str) -> tuple[str, int | None]:
    ipv6_match = re.fullmatch(r"\[([^\]]+)\](?::(\d{1,5}))?", entry)
    if ipv6_match:
        host, port = ipv6_match.groups()
    elif literal(entry) is not None:
        host, port = entry, None
    else:
        host, _, after = entry.partition(":")
        port = after if ":" in entry else None
    ip = literal(host)
    if not is_host(host) or not (port is None or (port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"{entry} is no host, host:port or range of addresses")
    return (host if ip is None else str(ip)), (None if port is None else int(port))


def url_fault(url: str) -> str | None:
    """Why this is no address that a webhook could have, whatever the operator allows; None where it is one."""
    if len(url) > MAX_URL:
        return f"has at most {MAX_URL} characters"
    if not _URL.fullmatch(url):
        return "consists of printable ASCII characters; escape all others"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "must be an address like https://hooks.example.com/cortex"
    if parts.scheme not in ("https", "http") or not host:
        return "must begin with https:// and a host"
    if "@" in parts.netloc:
        return "must not hold a user or a password: messages are signed instead"
    if "#" in url:
        return "must not have a fragment: it would never be sent"
    return "must name a host by its name or its address" if not is_host(host) or port == 0 else None


def check_url(url: str, allowed: Allowed) -> None:
    """Refuse where no message may be sent: https to the public internet, or a host that the operator listed. What a name
    resolves to is checked with every message."""
    if (fault := url_fault(url)) is not None:
        raise InvalidInput(f"`url` {fault}.", field="url")
    parts = urlsplit(url)
    host, port = endpoint(parts)
    address = literal(host)
    if parts.scheme != "https" and not allowed.host(host, port):
        raise _not_allowed("A webhook needs an https address.")
    if address is not None and not allowed.reach(host, port, address):
        raise _not_allowed(f"{host} is not on the public internet.")


def endpoint(parts: SplitResult) -> tuple[str, int]:
    """Host and port of an address that was checked."""
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _not_allowed(message: str) -> InvalidInput:
    return InvalidInput(
        message,
        code="url_not_allowed",
        hint="Use an https address on the public internet; the operator can list others in CORTEX_WEBHOOK_ALLOW.",
        field="url",
    )
