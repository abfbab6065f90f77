"""An HTTP server with a journal, and with no more manners than a test asks for."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.providers.answers import Answer, says


class Rejected(Exception):
    """A request that the provider would not take either."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def turn(self) -> int:
        """How many answers the conversation has since a person last spoke and before."""
        return sum(message["role"] == "assistant" for message in self.body.get("messages", ()))

    @property
    def tools(self) -> list[str]:
        return [tool.get("name") or tool["function"]["name"] for tool in self.body.get("tools", ())]

    @property
    def key(self) -> str | None:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or bearer or None


class Provider:
    """What both protocols have in common. ``answers`` come first, in order; after them `answer` decides."""

    path = ""
    suffix = ""
    """Of the base URL."""
    modules: tuple[str, ...] = ()
    """That whoever asks it needs."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.asked: list[Asked] = []
        self.answers: list[Answer] = []
        self.answer: Callable[[Asked], Answer] = lambda _asked: says("done")
        self.lost = 0
        """Answers whose reader left before they were over."""
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """That are open now."""
        return len(self._open)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.suffix}"

    def say(self, *answers: Answer) -> None:
        """Answer the next requests with these, one each."""
        self.answers.extend(answers)

    def by_turn(self, *answers: Answer) -> None:
        """Answer by the length of the conversation: whoever asks again is told the same. After the last one: `done`."""
        self.answer = lambda asked: answers[asked.turn] if asked.turn < len(answers) else says("done")

    # The protocol ------------------------------------------------------------------------------------------------

    def check(self, asked: Asked) -> None:
        """Raise `Rejected` where the real one would answer 400."""
        raise NotImplementedError

    def error(self, status: int, message: str) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, asked: Asked, answer: Answer) -> Iterator[bytes | None]:
        """The stream, piece by piece; None stands where the first words are over."""
        raise NotImplementedError

    def whole(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    # The server --------------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._open.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._open.discard(writer)
            self._serving.discard(task)
            writer.close()

    async def close(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(list(self._serving))

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False where the connection is over."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        _, target, _ = head[0].split(" ")
        try:
            if urlsplit(target).path != self.path:
                raise Rejected(404, f"no such path: {target}")
            asked = Asked(target, headers, json.loads(content))
            self.asked.append(asked)
            if asked.key != self.key:
                raise Rejected(401, f"invalid x-api-key: {asked.key}")
            self.check(asked)
        except Rejected as rejected:
            await self._reply(writer, rejected.status, {}, self.error(rejected.status, rejected.message))
            return True
        answer = self.answers.pop(0) if self.answers else self.answer(asked)
        if answer.status != 200:
            body = self.error(answer.status, answer.message)
            await self._reply(writer, answer.status, answer.headers, body)
            return True
        if not asked.body.get("stream"):
            await self._reply(writer, 200, answer.headers, self.whole(asked, answer))
            return True
        return await self._stream(reader, writer, answer, self.events(asked, answer))

    async def _reply(
        self, writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: dict[str, Any]
    ) -> None:
        content = json.dumps(body).encode()
        self._head(writer, status, {**headers, "content-length": str(len(content))}, "application/json")
        writer.write(content)
        await writer.drain()

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer, events: Iterator[bytes | None]
    ) -> bool:
        self._head(writer, 200, {**answer.headers, "transfer-encoding": "chunked"}, "text/event-stream")
        for event in events:
            if event is not None:
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
                continue
            if answer.hold is not None:
                await self._held(reader, answer.hold)
            if answer.cut:
                writer.transport.abort()
                return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _held(self, reader: asyncio.StreamReader, hold: asyncio.Event) -> None:
        """Until the test lets it go on, or whoever asked is gone."""
        released = asyncio.ensure_future(hold.wait())
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([released, gone], return_when=asyncio.FIRST_COMPLETED)
            if not hold.is_set():
                self.lost += 1
                raise ConnectionResetError
        finally:
            released.cancel()
            gone.cancel()
            await asyncio.gather(released, gone, return_exceptions=True)

    def _head(self, writer: asyncio.StreamWriter, status: int, headers: dict[str, str], content_type: str) -> None:
        lines = [f"HTTP/1.1 {status} Answer", f"content-type: {content_type}", "request-id: req_test"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())


P = TypeVar("P", bound=Provider)


@asynccontextmanager
async def serving(provider: P) -> AsyncIterator[P]:
    # What the first call would import: on a busy machine that takes longer than the leases and the patience of tests.
    for module in ("pydantic_ai.direct", "genai_prices", *provider.modules):
        importlib.import_module(module)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()
        await provider.close()


def midway(
    first: Iterable[bytes], answer: Answer, broken: bytes | None, rest: Iterable[bytes]
) -> Iterator[bytes | None]:
    """The first words, whatever goes wrong after them, and the rest."""
    yield from first
    yield None
    if broken is not None:
        yield broken
    if not answer.ends_early:
        yield from rest
