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
    """Nobody answered, or not in time, or not in HTTP, or nobody may be asked there. Whoever sends makes an error of the plane
    of it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    """At most its first 64 KiB."""


class SystemResolver:
    """Asks the system, in threads of its own: a name server that a tenant chose may keep one waiting for long, and the loop's
    own threads are needed for everything else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        asked = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, asked)
        return [str(each[4][0]) for each in found]


async def vetted(host: str, port: int, allowed: Allowed, resolver: Resolver) -> list[str]:
    """The addresses of a host, if every one of them may be reached; else ``Unreachable``: who mixes them wants to slip in.

    A name that does not exist and one that leads inside are answered alike: a tenant must not learn which names there are in the
    network of the plane, nor what they resolve to. The log says it.
    """
    try:
        addresses = [host] if literal(host) is not None else await resolver(host, port)
    except OSError as error:
        log.info("webhook host refused", host=host, reason=error.strerror or str(error))
        raise _no_public_address(host) from None
    kept = list(dict.fromkeys(addresses))
    for each in kept:
        address = literal(each)
        if address is None or not allowed.reach(host, port, address):
            log.info("webhook host refused", host=host, reason=f"it resolves to {each}")
            raise _no_public_address(host)
    if not kept:
        raise _no_public_address(host)
    return kept


def _no_public_address(host: str) -> Unreachable:
    return Unreachable(f"{host} has no address on the public internet.")


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to what was vetted and to nothing else, whatever host it is told."""

    def __init__(self, addresses: Sequence[str], seconds: float) -> None:
        self._addresses = addresses
        self._each = seconds / len(addresses)
        """One that is silent leaves time for the others."""
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
                return await self._inner.connect_tcp(address, port, self._each, local_address, socket_options)
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
        self._timeout = timeout
        self._ssl = ssl_context

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Raises ``Unreachable``. The time limit is for all of it: names, connection, answer."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout_at(deadline):
                    answer = await self._asked(stack, url, headers, body)
                return await _read(answer, deadline)
        except TimeoutError:
            raise Unreachable(f"No answer within {self._timeout:g} seconds.") from None
        except _BROKEN as error:
            raise Unreachable(f"The request failed: {str(error) or type(error).__name__}.") from None

    async def _asked(
        self, stack: contextlib.AsyncExitStack, url: str, headers: Mapping[str, str], body: bytes
    ) -> httpcore.Response:
        parts = urlsplit(url)
        host, port = endpoint(parts)
        addresses = await vetted(host, port, self._allowed, self._resolver)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # Built from the same parts that were checked, so that no second parser reads another host out of the text.
        where = httpcore.URL(
            scheme=parts.scheme.encode(), host=host.encode(), port=parts.port, target=target.encode()
        )
        # No encoding: what does not expand cannot be a bomb.
        sent = {**headers, "Accept-Encoding": "identity", "Connection": "close"}
        pool = await stack.enter_async_context(
            httpcore.AsyncConnectionPool(
                ssl_context=self._context() if parts.scheme == "https" else None,
                network_backend=_Pinned(addresses, self._timeout),
            )
        )
        return await stack.enter_async_context(
            pool.stream("POST", where, headers=list(sent.items()), content=body)
        )

    def _context(self) -> ssl.SSLContext:
        """Made once, and only by who sends something: it reads a file."""
        if self._ssl is None:
            import httpx  # late: an API process starts without it

            self._ssl = httpx.create_ssl_context()
        return self._ssl


async def _read(answer: httpcore.Response, deadline: float) -> Answer:
    """The status counts as soon as it is there; for the rest nobody waits long, and only so much is read."""
    parts: list[bytes] = []
    left = MAX_ANSWER_BYTES
    soon = min(deadline, asyncio.get_running_loop().time() + BODY_SECONDS)
    with contextlib.suppress(TimeoutError, *_BROKEN):
        async with asyncio.timeout_at(soon), contextlib.aclosing(_chunks(answer)) as chunks:
            async for chunk in chunks:
                parts.append(chunk[:left])
                left -= len(parts[-1])
                if left <= 0:
                    break
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    return Answer(answer.status, headers, b"".join(parts))


async def _chunks(answer: httpcore.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in answer.aiter_stream():
        yield chunk
