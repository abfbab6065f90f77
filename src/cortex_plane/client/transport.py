"""Requests and their answers: problems become the errors that the plane raised."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import httpx
import orjson

from cortex_plane.client.sockets import SocketTransport
from cortex_plane.kernel import errors
from cortex_plane.kernel.errors import CortexError, GateClosed, TooMany, Unavailable
from cortex_plane.kernel.fields import adapter, parse
from cortex_plane.kernel.routes import ListRoute, Route

if TYPE_CHECKING:
    from cortex_plane.sessions.model.events import Event

T = TypeVar("T")

SILENCE_SECONDS = 45.0
"""The plane sends something every 15 s; a stream that is silent for this long is lost."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
_HEADERS = {"User-Agent": "cortex-plane", "Accept": "*/*", "Accept-Encoding": "identity"}
Lost = Callable[[CortexError], None]
"""Called once for each time that the plane is away."""

_KINDS = (
    errors.Unauthenticated,
    errors.Forbidden,
    errors.NotFound,
    errors.Conflict,
    errors.Stale,
    errors.TooLarge,
    errors.InvalidInput,
    TooMany,
    Unavailable,
)
_BY_STATUS: dict[int, type[CortexError]] = {
    **{kind.http_status: kind for kind in _KINDS},
    **dict.fromkeys((502, 504), Unavailable),  # of proxies
}
_BY_CODE: dict[str, type[CortexError]] = {kind.code: kind for kind in (errors.AlreadyExists, errors.InUse, GateClosed)}


def certificates(url: str) -> ssl.SSLContext | bool:
    """What httpx takes for ``verify``. Reading the authorities takes 30 ms: for a plain address none are read, nobody is trusted."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http://") else True


@dataclass(frozen=True)
class Plane:
    """Where requests go, and what each of them carries.

    They are sent with httpx's transports. Its client, with redirects, cookies and proxies, would cost a quarter more CPU.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)  # they hold the key
    transport: httpx.AsyncBaseTransport | None = None
    """Where it is not the network."""

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
            is_plain = url.is_absolute_url and not (url.userinfo or url.query or url.fragment)
        except httpx.InvalidURL:
            is_plain = False
        if not is_plain:
            raise errors.InvalidInput(
                "The address of a plane is a URL without a password, a query and a fragment.",
                hint="Give it like https://plane.example.org, and the key by itself.",
                field="url",
            )

    def connections(self) -> httpx.HTTPTransport:
        return httpx.HTTPTransport(verify=certificates(self.url), trust_env=False)

    def async_connections(self) -> httpx.AsyncBaseTransport:
        """For whole answers."""
        return self.transport or SocketTransport(self.url)

    def streams(self) -> httpx.AsyncBaseTransport:
        """For answers that are read piece by piece."""
        return self.transport or httpx.AsyncHTTPTransport(verify=certificates(self.url), trust_env=False)

    def request(
        self, route: Route[Any], values: Sequence[object], *, query: Mapping[str, Any] | None, content: bytes | None,
        headers: Mapping[str, str], seconds: float | None,
    ) -> httpx.Request:  # fmt: skip
        url = self.url.rstrip("/") + route.path_to(*values)
        if fields := _query(query):
            url = f"{url}?{urlencode(fields)}"
        kind = {} if content is None else {"Content-Type": "application/json"}
        return httpx.Request(
            route.method, url, content=content, headers={**_HEADERS, **self.headers, **kind, **headers},
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), seconds)},
        )  # fmt: skip


async def send_async(connections: httpx.AsyncBaseTransport, request: httpx.Request) -> httpx.Response:
    """The whole answer. Raises `httpx.HTTPError`."""
    answer = await connections.handle_async_request(request)
    try:
        await answer.aread()
    finally:
        await answer.aclose()
    answer.request = request
    return answer


def send(connections: httpx.BaseTransport, request: httpx.Request) -> httpx.Response:
    """The whole answer. Raises `httpx.HTTPError`."""
    answer = connections.handle_request(request)
    try:
        answer.read()
    finally:
        answer.close()
    answer.request = request
    return answer


class Transport:
    """Sends requests of declared routes, and parses their answers."""

    def __init__(self, plane: Plane, seconds: float) -> None:
        self._plane, self._seconds = plane, seconds
        self._connections = plane.async_connections()

    @cached_property
    def _streams(self) -> httpx.AsyncClient:
        """For answers that are read piece by piece."""
        plane = self._plane
        # No proxies from the environment: a key must not pass through a machine that nobody named here.
        return httpx.AsyncClient(
            base_url=plane.url, headers=plane.headers, timeout=self._seconds, transport=plane.streams(), trust_env=False
        )

    async def close(self) -> None:
        await self._connections.aclose()
        if "_streams" in self.__dict__:
            await self._streams.aclose()

    async def call(
        self,
        route: Route[T],
        *values: object,
        body: Any = None,
        query: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        revision: int | None = None,
    ) -> T:
        """The answer. ``values`` are those of the path."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        if revision is not None:
            headers["If-Match"] = f'"{revision}"'
        answer = await self._send(route, values, query, body, headers)
        output: T = adapter(route.output).validate_python(answer)
        return output

    async def all(self, route: ListRoute[T], *values: object, **query: Any) -> Sequence[T]:
        """A list that comes in one page, and takes no page parameters."""
        page = await self._send(route, values, query)
        return [parse(route.output, item) for item in page["items"]]

    async def pages(
        self, route: ListRoute[T], *values: object, limit: int | None = None, **query: Any
    ) -> AsyncIterator[T]:
        """Every item of a list, page by page as they are needed; at most ``limit``."""
        cursor, rest = None, limit
        while rest is None or rest > 0:
            size = 200 if rest is None else min(rest, 200)
            page = await self._send(route, values, query | {"cursor": cursor, "limit": size})
            for item in page["items"]:
                yield parse(route.output, item)
            rest = None if rest is None else rest - len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def _send(
        self, route: Route[Any], values: tuple[object, ...], query: dict[str, Any] | None, body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Any:  # fmt: skip
        """The decoded answer; None for 204."""
        content = None if body is None else adapter(type(body)).dump_json(body, exclude_none=True)
        answer = await self.send_bytes(route, *values, content=content, query=query, headers=headers or {})
        return orjson.loads(answer.content) if answer.content else None

    async def send_bytes(
        self, route: Route[Any], *values: object, content: bytes | None, query: Mapping[str, Any] | None,
        headers: Mapping[str, str],
    ) -> httpx.Response:  # fmt: skip
        """The answer as it came, to a body that is sent as it is."""
        request = self._plane.request(
            route, values, query=query, content=content, headers=headers, seconds=self._seconds
        )
        try:
            answer = await send_async(self._connections, request)
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        if answer.status_code >= 400:
            raise problem(answer)
        return answer

    async def download(self, route: Route[bytes], **query: Any) -> AsyncGenerator[bytes, None]:
        """An answer of any size, piece by piece. Raises at its end if it was cut off."""
        begun = False
        try:
            async with self._streams.stream(route.method, route.path, params=_query(query)) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise problem(answer)
                begun = True
                async for piece in answer.aiter_bytes():
                    yield piece
        except httpx.HTTPError as error:
            if not begun:
                raise self._silent(error) from error
            raise Unavailable(
                f"The answer of the plane at {self._plane.url} was cut off: {error or type(error).__name__}.",
                code="cut_off",
                hint="What has come is not whole: throw it away and ask again.",
            ) from error

    async def events(
        self, route: ListRoute[Event], id: UUID, *, after: int, on_lost: Lost | None, **query: Any
    ) -> AsyncGenerator[Event, None]:
        """Events after a number, without gaps or duplicates, however often the connection breaks, until the plane ends them.

        A plane that does not answer at all is an error the first time and waited for afterwards.
        """
        is_new, away = True, False
        pause = FIRST_PAUSE
        while True:
            try:
                async with aclosing(self._frames(route.path_to(id), _query(query), after)) as frames:
                    async for name, data in frames:
                        is_new, away, pause = False, False, FIRST_PAUSE
                        if data is None:
                            continue
                        if name == "end":
                            return
                        if name == "dropped":
                            break
                        event = parse(route.output, orjson.loads(data))
                        after = event.seq
                        yield event
            except (Unavailable, TooMany) as error:
                if is_new:
                    raise
                if on_lost is not None and not away:
                    on_lost(error)
                away = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- jitter
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _frames(
        self, path: str, query: dict[str, str], after: int
    ) -> AsyncGenerator[tuple[str, bytes | None], None]:
        """The name and data of each message of a stream. One that only says that the stream lives has no data."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=10)
        try:
            async with self._streams.stream("GET", path, params=query, headers=headers, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise problem(answer)
                # By hand: the driver's lines end at characters that may stand in JSON.
                rest = b""
                async for piece in answer.aiter_bytes():
                    *whole, rest = (rest + piece).split(b"\n\n")
                    for block in whole:
                        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
                        yield fields.get(b"event", b"message").decode(), fields.get(b"data")
        except httpx.HTTPError as error:
            raise self._silent(error) from error

    def _silent(self, error: httpx.HTTPError) -> Unavailable:
        return Unavailable(
            f"The plane at {self._plane.url} does not answer: {error or type(error).__name__}.",
            hint="Start it with `make up`, or set CORTEX_URL.",
        )


def _query(query: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (query or {}).items() if value is not None}


def problem(answer: httpx.Response) -> CortexError:
    try:
        fields: dict[str, Any] = orjson.loads(answer.content)
        code, message, hint = fields["code"], fields["detail"], fields["hint"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        by_status = _BY_STATUS.get(answer.status_code, CortexError)
        if issubclass(by_status, Unavailable | TooMany):
            # A proxy that does not reach the plane, or lets nobody through now, answers in its own words.
            return by_status(f"HTTP {answer.status_code} from {answer.url}: the plane cannot be reached through it.")
        return CortexError(
            f"HTTP {answer.status_code} from {answer.url}.",
            code="unexpected_answer",
            hint="Is this the address of a Cortex Plane?",
        )
    kind = _BY_CODE.get(code) or _BY_STATUS.get(answer.status_code, CortexError)
    details = [error for error in fields.get("errors", []) if error["message"] != message]
    faults = "".join(f" {error['field']}: {error['message'].rstrip('.')}." for error in details)
    questions = {"questions": fields["questions"]} if "questions" in fields else {}
    return kind(message + faults, code=code, hint=hint, request_id=fields.get("request_id"), **questions)


class Noun:
    """The routes of one noun: one method per route."""

    def __init__(self, plane: Transport) -> None:
        self._plane = plane
