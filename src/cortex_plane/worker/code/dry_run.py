"""Would the code that is loaded here go on with a recorded job? Recorded results are given back, and nothing is performed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.jobs.model.journal import JournalEntry
from cortex_plane.worker.code.context import CodeAgent, Context, JournalReplay
from cortex_plane.worker.code.operations import PlannedOperation, Scope, Unwind, last_round, round_prefix

NOBODY = UUID(int=0)
Fetch = Callable[[UUID], Awaitable[bytes | None]]


async def dry_run(
    agent_function: CodeAgent,
    entries: Sequence[JournalEntry],
    payload: dict[str, Any],
    *,
    job_id: UUID = NOBODY,
    session_id: UUID = NOBODY,
    agent: str = "agent",
    fetch: Fetch | None = None,
    seconds: float = 10.0,
) -> str | None:
    """How the code differs from what was recorded; None where it comes to the same place. Performs no operation.

    The code between the operations does run. ``fetch`` reads results that are kept apart, by their id. ``payload`` is what the
    function is given: in a conversation with the `text` of what people said.
    """
    replay = _Dry(entries, fetch)
    ctx = Context(replay, payload=payload, job_id=job_id, session_id=session_id, agent=agent)
    task = asyncio.ensure_future(replay.play(agent_function, ctx, round_prefix(last_round(entries))))
    try:
        is_over = bool((await asyncio.wait([task], timeout=seconds))[0])
    finally:
        replay.closed = True
        task.cancel()
        await asyncio.wait([task], timeout=1)
    if not is_over:
        return f"its code did not come to an operation within {seconds:g} s"
    return replay.verdict(None if task.cancelled() else task.exception())


class _Dry(JournalReplay):
    def __init__(self, entries: Sequence[JournalEntry], fetch: Fetch | None) -> None:
        super().__init__(entries)
        self._fetch = fetch
        self._reached_the_end = False

    def verdict(self, error: BaseException | None) -> str | None:
        if self.mismatch is not None:
            return self.mismatch
        entry = self.scopes.unvisited()
        if entry is None:
            return None
        if error is not None and not isinstance(error, Unwind):
            return f"expected {entry.kind} `{entry.key}`, and the code raised {type(error).__name__}: {error}"
        return None if self._reached_the_end else f"expected {entry.kind} `{entry.key}`, which did not come"

    async def live(
        self,
        scope: Scope,  # noqa: ARG002
        key: str,  # noqa: ARG002
        entry: JournalEntry | None,  # noqa: ARG002
        operation: PlannedOperation,  # noqa: ARG002
    ) -> Any:
        self._reached_the_end = True
        raise Unwind

    async def result_of(self, entry: JournalEntry) -> Any:
        if entry.result_id is None or self._fetch is None:
            return entry.result
        content = await self._fetch(entry.result_id)
        return entry.result if content is None else orjson.loads(content)

    def boundary(self) -> None:
        pass

    @property
    def stopped(self) -> bool:
        return self._reached_the_end

    def now(self) -> datetime:
        raise AssertionError("nothing is performed")
