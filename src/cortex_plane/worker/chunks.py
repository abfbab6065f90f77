"""Hearing a model out, and telling whoever watches what it says while it still speaks.

Nothing waits for a chunk and nothing depends on one: they are collected for a moment, appended in the background, and
lost without a word where that fails. An answer that is complete before the moment is over is never told in chunks. Once
the step is recorded its chunks are deleted; until somebody has, readers leave them out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any

import structlog

from cortex_plane.agents.model.completions import ModelError, Response, TextChunk, Usage
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.kernel.errors import CortexError
from cortex_plane.sessions.verbs import events
from cortex_plane.worker.calls import storable
from cortex_plane.worker.lease import WorkerContext

log = structlog.get_logger()

FLUSH_SECONDS = 0.1
FLUSH_CHARACTERS = 2000
MOST_CHARACTERS = 16_000
"""Of one chunk."""
FORGET_SECONDS = (0.5, 2.0, 10.0)
"""After the answer: when its chunks are looked for, until they are gone."""

_tasks: set[asyncio.Task[None]] = set()
"""Kept from the garbage collector; each ends by itself."""


async def heard(
    pieces: AsyncIterator[TextChunk | Usage | Response], silence_seconds: float, chunks: Chunks
) -> Response:
    """The response at the end of a stream; a model that falls silent gives none."""
    response = None
    try:
        while True:
            async with asyncio.timeout(silence_seconds) as silence:
                piece = await anext(pieces, None)
            if piece is None:
                break
            if isinstance(piece, Response):
                response = piece
            elif isinstance(piece, Usage):
                chunks.spent = piece
            else:
                chunks.add(piece.text)
    except TimeoutError:
        if not silence.expired():
            raise
        raise ModelError(f"The model was silent for {silence_seconds} s.", status=408) from None
    finally:
        chunks.end(complete=response is not None)
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
    if response is None:
        raise ModelError("The model's answer ended before it was complete.")
    return response


class Chunks:
    """The chunks of one step of one attempt."""

    def __init__(self, host: WorkerContext, given: Assignment, step: int, *, told: bool = True) -> None:
        """Not ``told``: they are counted alone."""
        self.spent: Usage | None = None
        """What the provider counted so far, where it says so while it speaks."""
        self.characters = 0
        self._silent = not told
        self._host = host
        self._given = given
        self._step = step
        self._text: list[str] = []
        self._size = 0
        self._due = asyncio.Event()
        self._over = False
        self._complete = False
        self._told = False
        self._flushing: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        if not text or self._over:
            return
        self.characters += len(text)
        if self._silent:
            return
        self._text.append(text)
        self._size += len(text)
        if self._size >= FLUSH_CHARACTERS:
            self._due.set()
        if self._flushing is None:
            self._flushing = _in_background(self._flush())

    def end(self, *, complete: bool) -> None:
        """What was not told yet need not be: the step tells all of it, or nobody will have it."""
        self._over, self._complete = True, complete
        self._due.set()

    async def _flush(self) -> None:
        while not self._over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._due.wait()
            if self._over or not await self._append():
                break
        if self._told:
            await self._forget()

    async def _append(self) -> bool:
        text, self._text, self._size = storable("".join(self._text)), [], 0
        self._due.clear()
        if not text:
            return True
        texts = [text[at : at + MOST_CHARACTERS] for at in range(0, len(text), MOST_CHARACTERS)]
        try:
            told = await events.append_chunks(
                self._host.db, self._given, self._host.worker_id, self._step, texts
            )
        except CortexError as error:
            # The next one is tried again: a gap in the text is gone with the step.
            log.info("chunk lost", job_id=str(self._given.job_id), error=str(error))
            return True
        self._told = self._told or told
        return told

    async def _forget(self) -> None:
        if not self._complete:
            with contextlib.suppress(CortexError):
                await events.void_chunks(self._host.db, self._given, self._step)
            return
        for seconds in FORGET_SECONDS:
            await asyncio.sleep(seconds)
            with contextlib.suppress(CortexError):
                if await events.drop_chunks(self._host.db, self._given, self._step):
                    return


def _in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_done)
    return task


def _done(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.error("chunks failed", error=repr(task.exception()))
