"""Following events: one connection after the other, from the last number on, until the plane says that it is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import httpx
import orjson

from cortex_plane.kernel.errors import CortexError, TooMany, Unavailable
from cortex_plane.kernel.fields import parse
from cortex_plane.sessions.model.events import Event

SILENCE_SECONDS = 45.0
"""The plane says something every 15 s; whoever hears nothing for this long has lost it."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0

Lost = Callable[[CortexError], None]
"""Called once for each time that the plane is away."""
Refusal = Callable[[httpx.Response], CortexError]


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a stream."""

    name: str
    data: bytes | None
    """None for what only says that the stream lives."""


async def follow(
    http: httpx.AsyncClient, path: str, query: dict[str, str], after: int, refusal: Refusal, on_lost: Lost | None = None
) -> AsyncIterator[Event]:
    """Events after a number, without gaps or duplicates, however often the connection breaks.

    A plane that does not answer at all is an error the first time and waited for afterwards.
    """
    is_new, away = True, False
    pause = FIRST_PAUSE
    while True:
        try:
            async with aclosing(_frames(http, path, query, after, refusal)) as frames:
                async for frame in frames:
                    is_new, away, pause = False, False, FIRST_PAUSE
                    if frame.data is None:
                        continue
                    if frame.name == "end":
                        return
                    if frame.name == "dropped":
                        break
                    event = parse(Event, orjson.loads(frame.data))
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
    http: httpx.AsyncClient, path: str, query: dict[str, str], after: int, refusal: Refusal
) -> AsyncGenerator[Frame, None]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=10)
    try:
        async with http.stream("GET", path, params=query, headers=headers, timeout=timeout) as answer:
            if answer.status_code >= 400:
                await answer.aread()
                raise refusal(answer)
            # By hand: the driver's lines end at characters that may stand in JSON.
            rest = b""
            async for piece in answer.aiter_bytes():
                *whole, rest = (rest + piece).split(b"\n\n")
                for block in whole:
                    yield _frame(block)
    except httpx.HTTPError as error:
        raise Unavailable(
            f"The plane at {http.base_url} does not answer: {error or type(error).__name__}.",
            hint="Start it with `make up`, or set CORTEX_URL.",
        ) from error


def _frame(block: bytes) -> Frame:
    name, data = "message", None
    for line in block.split(b"\n"):
        field, _, value = line.partition(b": ")
        if field == b"event":
            name = value.decode()
        elif field == b"data":
            data = value
    return Frame(name, data)
