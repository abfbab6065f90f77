"""Requests to addresses that tenants name, which must not reach what only the plane can reach.

A name is resolved once, every address that it has is checked, and the connection goes to one of exactly those: a name that
resolves otherwise a moment later changes nothing. Host, server name and certificate stay those of the name. No redirects,
no proxies, no decompression, an end to every answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpcore
import structlog

from cortex_plane.kernel.addresses import Allowed, endpoint, literal

log = structlog.get_logger()

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host and a port to all of its addresses."""

RESOLVER_THREADS = 4
MAX_ANSWER_BYTES = 64 * 1024
BODY_SECONDS = 2
"""For the text of an answer whose status is known."""
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class Unreachable(Exception):
    """No answer in time, no HTTP, or an address that may not be reached. The caller turns it into an error of the plane."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    """At most its first 64 KiB."""


class SystemResolver:
    """The system's resolver, in threads of its own: a tenant's name server may be slow."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        lookup = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in await asyncio.get_running_loop().run_in_executor(self._threads, lookup)]


async def vetted(host: str, port: int, allowed: Allowed, resolver: Resolver) -> list[str]:
    """The addresses of a host, if all of them may be reached; else ``Unreachable``. The error is the same for a name that
    does not exist and one that resolves to a private address: a tenant must not learn which names exist in the plane's
    network. The log has the reason."""
    try:
        addresses = [host] if literal(host) is not None else await resolver(host, port)
    except OSError as error:
        log.info("webhook host refused", host=host, reason=error.strerror or str(error))
        raise _no_public_address(host) from None
    distinct = list(dict.fromkeys(addresses))
    for text in distinct:
        address = literal(text)
        if address is None or not allowed.reach(host, port, address):
            log.info("webhook host refused", host=host, reason=f"it resolves to {text}")
            raise _no_public_address(host)
    if not distinct:
        raise _no_public_address(host)
    return distinct


def _no_public_address(host: str) -> Unreachable:
    return Unreachable(f"{host} has no address on the public internet.")


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to the vetted addresses only, whatever the host."""

    def __init__(self, addresses: Sequence[str], seconds: float) -> None:
        self._addresses = addresses
        self._seconds = seconds / len(addresses)
        """Per address, so that a silent one leaves time for the others."""
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
        for address in self._addresses:
            try:
                return await self._inner.connect_tcp(address, port, self._seconds, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
        raise last or httpcore.ConnectError(f"{host} has no address")


class PinnedClient:
    """Posts to an address that was checked with ``check_url``. Keeps no connection between two requests."""

    def __init__(
        self,
        allowed: Allowed,
        *,
        resolver: Resolver | None = None,
        timeout: float = 10,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed
        self._resolver = resolver or SystemResolver()
        self._timeout, self._ssl = timeout, ssl_context

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Raises ``Unreachable``. The time limit is for all of it: names, connection, answer."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout_at(deadline):
                    answer = await self._send(stack, url, headers, body)
                return await _read(answer, deadline)
        except TimeoutError:
            raise Unreachable(f"No answer within {self._timeout:g} seconds.") from None
        except _BROKEN as error:
            raise Unreachable(f"The request failed: {str(error) or type(error).__name__}.") from None

    async def _send(
        self, stack: contextlib.AsyncExitStack, url: str, headers: Mapping[str, str], body: bytes
    ) -> httpcore.Response:
        parts = urlsplit(url)
        host, port = endpoint(parts)
        addresses = await vetted(host, port, self._allowed, self._resolver)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # Built from the parts that were checked, so that no second parser finds another host in the text.
        where = httpcore.URL(scheme=parts.scheme.encode(), host=host.encode(), port=parts.port, target=target.encode())
        # No compression: an answer that does not expand cannot be a bomb.
        headers = {**headers, "Accept-Encoding": "identity", "Connection": "close"}
        pool = await stack.enter_async_context(
            httpcore.AsyncConnectionPool(
                ssl_context=self._context() if parts.scheme == "https" else None,
                network_backend=_Pinned(addresses, self._timeout),
            )
        )
        return await stack.enter_async_context(pool.stream("POST", where, headers=list(headers.items()), content=body))

    def _context(self) -> ssl.SSLContext:
        """Created once, when first needed: it reads a file."""
        if self._ssl is None:
            import httpx  # late: an API process starts without it

            self._ssl = httpx.create_ssl_context()
        return self._ssl


async def _read(answer: httpcore.Response, deadline: float) -> HttpAnswer:
    """The status counts at once; the body is read for a short time, and up to a limit."""
    parts: list[bytes] = []
    room = MAX_ANSWER_BYTES
    soon = min(deadline, asyncio.get_running_loop().time() + BODY_SECONDS)
    with contextlib.suppress(TimeoutError, *_BROKEN):
        async with asyncio.timeout_at(soon), contextlib.aclosing(_chunks(answer)) as chunks:
            async for chunk in chunks:
                parts.append(chunk[:room])
                room -= len(parts[-1])
                if room <= 0:
                    break
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    return HttpAnswer(answer.status, headers, b"".join(parts))


async def _chunks(answer: httpcore.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in answer.aiter_stream():
        yield chunk
