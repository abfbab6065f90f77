"""Requests to the vendors of channels, over connections that stay open.

A connection goes only to addresses that were vetted when it was opened, because the base address of an API may be a tenant's own
(a GitLab, a Bot API server). No redirects, no proxies, no decompression, an end to every answer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpcore
import orjson

from cortex_plane.channels.pinned_http import Resolver, SystemResolver, Unreachable, vetted
from cortex_plane.kernel.addresses import Allowed, check_url, endpoint
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.notifications import TryAgain, Undeliverable

MAX_ANSWER_BYTES = 1024 * 1024
IDLE_SECONDS = 30.0
MAX_CONNECTIONS = 16
"""To one origin."""
LONGEST_WAIT = 3600.0


@dataclass(frozen=True, slots=True)
class VendorAnswer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """Raises ``TryAgain`` for what is no JSON: a proxy in between, or a vendor in trouble."""
        try:
            return orjson.loads(self.body)
        except ValueError:
            raise TryAgain(f"The vendor answered HTTP {self.status} without JSON.") from None

    @property
    def retry_after(self) -> float | None:
        """Seconds, from the header; at most an hour, so that no vendor silences the plane for good."""
        try:
            return min(max(float(self.headers.get("retry-after", "")), 0.0), LONGEST_WAIT)
        except ValueError:
            return None


class VendorClient:
    """One for each channel. ``close`` it at the end."""

    def __init__(
        self,
        allowed: Allowed,
        *,
        resolver: Resolver | None = None,
        timeout: float = 10,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._allowed, self._timeout, self._ssl = allowed, timeout, ssl_context
        self._max_connections = max_connections
        self._resolver = resolver or SystemResolver()
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}

    def apart(self, max_connections: int) -> VendorClient:
        """The same with connections of its own, for requests that take long: they hold up no others."""
        return VendorClient(
            self._allowed, resolver=self._resolver, timeout=self._timeout, ssl_context=self._ssl,
            max_connections=max_connections,
        )  # fmt: skip

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        form: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> VendorAnswer:
        """Whatever the status. Raises ``TryAgain`` where nobody answered, ``Undeliverable`` for an address that may not be reached."""
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        body: bytes | None = None
        if json is not None:
            body, sent["Content-Type"] = orjson.dumps(json), "application/json"
        elif form is not None:
            body, sent["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
        try:
            check_url(url, self._allowed)
            async with asyncio.timeout(seconds or self._timeout):
                return await self._exchange(method, url, sent, body)
        except InvalidInput as error:
            raise Undeliverable(error.message) from None
        except Unreachable as error:
            raise TryAgain(error.message) from None
        except TimeoutError:
            raise TryAgain(f"No answer within {seconds or self._timeout:g} seconds.") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise TryAgain(f"The request failed: {str(error) or type(error).__name__}.") from None

    async def open_socket(self, url: str) -> socket.socket:
        """A connection to the host of an address, vetted, for a protocol that is not HTTP. Raises as ``request`` does."""
        try:
            check_url(url, self._allowed)
            parts = urlsplit(url)
            host, port = endpoint(parts)
            async with asyncio.timeout(self._timeout):
                return await _connect(await vetted(host, port, self._allowed, self._resolver), port, self._timeout)
        except InvalidInput as error:
            raise Undeliverable(error.message) from None
        except Unreachable as error:
            raise TryAgain(error.message) from None
        except TimeoutError:
            raise TryAgain(f"No answer within {self._timeout:g} seconds.") from None
        except OSError as error:
            raise TryAgain(f"The connection failed: {error.strerror or type(error).__name__}.") from None

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> VendorAnswer:
        parts = urlsplit(url)
        host, _ = endpoint(parts)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # Built from the parts that were checked, so that no second parser finds another host in the text.
        where = httpcore.URL(scheme=parts.scheme.encode(), host=host.encode(), port=parts.port, target=target.encode())
        async with self._pool(parts.scheme, parts.netloc).stream(
            method, where, headers=list(headers.items()), content=body
        ) as answer:
            content = bytearray()
            async for chunk in answer.aiter_stream():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise TryAgain("The answer of the vendor is longer than 1 MiB.")
            names = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
            return VendorAnswer(answer.status, names, bytes(content))

    def _pool(self, scheme: str, netloc: str) -> httpcore.AsyncConnectionPool:
        origin = f"{scheme}://{netloc}"
        if origin not in self._pools:
            self._pools[origin] = httpcore.AsyncConnectionPool(
                ssl_context=self.tls() if scheme == "https" else None,
                max_connections=self._max_connections,
                keepalive_expiry=IDLE_SECONDS,
                network_backend=_Vetting(self._allowed, self._resolver, self._timeout),
            )
        return self._pools[origin]

    def tls(self) -> ssl.SSLContext:
        if self._ssl is None:
            import httpx  # late: an API process starts without it

            self._ssl = httpx.create_ssl_context()
        return self._ssl

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()
        self._pools.clear()


async def _connect(addresses: Sequence[str], port: int, seconds: float) -> socket.socket:
    """To the first that answers. Each has its part of the time, so that a silent one leaves some for the others."""
    last: OSError | None = None
    for address in addresses:
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(seconds / len(addresses)):
                await asyncio.get_running_loop().sock_connect(connection, (address, port))
        except OSError as error:
            connection.close()
            last = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise last or OSError("the host has no address")


class _Vetting(httpcore.AsyncNetworkBackend):
    """Resolves and checks a host for each new connection, and connects to exactly what was checked."""

    def __init__(self, allowed: Allowed, resolver: Resolver, seconds: float) -> None:
        self._allowed, self._resolver, self._seconds = allowed, resolver, seconds
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 -- the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        last: Exception | None = None
        addresses = await vetted(host, port, self._allowed, self._resolver)
        for address in addresses:
            try:
                # Each has its part of the time, so that a silent one leaves some for the others.
                seconds = self._seconds / len(addresses)
                return await self._inner.connect_tcp(address, port, seconds, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
        raise last or httpcore.ConnectError(f"{host} has no address")
