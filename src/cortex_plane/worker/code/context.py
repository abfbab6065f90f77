"""The context of a code agent's function, and the replay of its journal.

Recorded operations return their recorded results; others are performed by an attempt (`performer`), or not at all (`dry_run`).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

import orjson

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.jobs.model.journal import (
    ContextMisused,
    EntryKind,
    EntryStatus,
    GateClosed,
    JournalEntry,
    StepFailed,
    ToolDenied,
    ToolFailed,
    WaitTimeout,
)
from cortex_plane.kernel.errors import CortexError
from cortex_plane.worker.calls import storable
from cortex_plane.worker.code import operations
from cortex_plane.worker.code.operations import (
    Mismatch,
    PlannedOperation,
    Scope,
    Scopes,
    Unwind,
    current,
    last_round,
    round_prefix,
)

T = TypeVar("T")
NO_MORE = "It takes no more answers: go another way."


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What people said to a request. It counts as true where they approved."""

    approved: bool
    reason: str | None = None
    by: str | None = None
    """Who decided; None where nobody did."""

    def __bool__(self) -> bool:
        return self.approved


def check_passed(reply: Mapping[str, Any]) -> bool:
    """What gates said to an answer."""
    if reply.get("error"):
        raise ToolFailed(str(reply["error"]))
    if reply.get("shut"):
        raise GateClosed(f"The gate `{reply.get('gate')}` is shut: {reply.get('reason', '')}", hint=NO_MORE)
    return bool(reply.get("passed"))


class Operation(Generic[T]):
    """Begins when it is awaited, and is awaited once. One that never is ends the job with an error that names it."""

    def __init__(self, replay: JournalReplay, what: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.what = what
        self._replay, self._begin = replay, begin
        self._begun = False
        replay.unawaited.append(self)

    def __await__(self) -> Generator[Any, None, T]:
        if self._begun:
            raise ContextMisused(f"{self.what} was awaited twice.", hint="Keep its result in a variable.")
        self._begun = True
        self._replay.unawaited.remove(self)
        return self._begin().__await__()


class Context:
    """One job of a code agent. Everything it gives was recorded: when the job goes on, the same comes again."""

    def __init__(
        self, replay: JournalReplay, *, payload: dict[str, Any], job_id: UUID, session_id: UUID, agent: str
    ) -> None:
        self.payload = payload
        self.job_id = job_id
        self.session_id = session_id
        self.agent = agent
        """Its slug."""
        self._replay = replay

    def __repr__(self) -> str:
        return f"Context(job_id={str(self.job_id)!r})"

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Operation[T]: ...

    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, retries: int = 0, timeout: float | None = None
    ) -> Operation[T]: ...

    def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, retries: int = 0, timeout: float | None = None
    ) -> Operation[Any]:
        """Call a function and record what it returned, as JSON. It may run again if the worker dies before that: what must
        happen once is a tool. Raises `StepFailed` where the function raised, after so many ``retries``."""
        return self._operation(
            f"The step `{name}`",
            lambda: self._replay.perform(operations.plan_step(name, function, args, retries, timeout)),
        )

    def tool(self, name: str, /, **arguments: Any) -> Operation[Any]:
        """Call a tool of the app: by its policies, approvals and ledger. Raises `ToolFailed` or `ToolDenied`."""
        return self._operation(
            f"The tool `{name}`", lambda: self._replay.perform(operations.plan_tool(name, arguments))
        )

    def answer(self, gate: str, answers: Mapping[str, Any], *, call: str | None = None) -> Operation[bool]:
        """Answer a gate that `GateClosed` told of: whether it is passed. ``call`` names the call that it stops, where it
        stops several. Raises `GateClosed` where it takes no more answers, `ToolFailed` where it does not wait for any."""
        return self._operation(
            f"The answer to `{gate}`", lambda: self._answer(operations.plan_answer(gate, answers, call))
        )

    async def _answer(self, operation: operations.PlannedCall) -> bool:
        return check_passed(await self._replay.perform(operation))

    def request_approval(
        self,
        action: str,
        *,
        details: Mapping[str, Any] | None = None,
        approvers: Sequence[UUID | str] | None = None,
        timeout: float | None = None,
        quorum: int | None = None,
        clearance: int | None = None,
    ) -> Operation[Decision]:
        """Ask people, always, whatever policies say of `plane.ask`; they say who decides. ``approvers`` (ids of members),
        ``timeout`` (seconds), ``quorum`` and ``clearance`` only tighten that. A no is a Decision, and not an error."""
        return self._operation(
            "The request for approval",
            lambda: self._replay.perform(
                operations.plan_approval(action, details, approvers, timeout, quorum, clearance)
            ),
        )

    def model(
        self, prompt: str, *, system: str | None = None, temperature: float | None = None, max_tokens: int | None = None
    ) -> Operation[str]:
        """Ask the agent's model, without tools, and record its text. Raises `ModelError`."""
        return self._operation(
            "The request to the model",
            lambda: self._replay.perform(operations.plan_model(prompt, system, temperature, max_tokens)),
        )

    def sleep(self, seconds: float | timedelta | None = None, *, until: datetime | None = None) -> Operation[None]:
        """Go on later. Until then the job holds no worker."""
        return self._operation("The sleep", lambda: self._replay.perform(operations.plan_sleep(seconds, until)))

    def wait_event(self, name: str, *, key: str, timeout: float | timedelta | None = None) -> Operation[Any]:
        """The payload of the signal ``name`` with this key, sent before or after. Raises `WaitTimeout`."""
        return self._operation(
            f"The wait for `{name}`", lambda: self._replay.perform(operations.plan_wait(name, key, timeout))
        )

    def now(self) -> Operation[datetime]:
        """The time of the plane, the same whenever the job goes on."""
        return self._operation("The time", lambda: self._replay.perform(operations.plan_value("now", self._replay.now)))

    def random(self) -> Operation[float]:
        """A number from 0 to 1, the same whenever the job goes on."""
        # Not for secrets: it stands in the journal.
        return self._operation(
            "The number", lambda: self._replay.perform(operations.plan_value("random", random.random))
        )

    def uuid(self) -> Operation[UUID]:
        return self._operation("The id", lambda: self._replay.perform(operations.plan_value("uuid", uuid.uuid4)))

    def gather(self, *branches: Awaitable[Any], return_exceptions: bool = False) -> Operation[list[Any]]:
        """All of these at once, each a branch of its own. If one waits, the others go as far as they can; if one raises,
        the others end first. With ``return_exceptions`` what they raised stands among the results."""
        return self._operation("The gather", lambda: self._replay.branch(branches, return_exceptions))

    def _operation(self, what: str, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Operation[Any]:
        return Operation(self._replay, what, begin)


CodeAgent = Callable[[Context], Awaitable[Any]]
FAILURES: dict[str, type[CortexError]] = {
    kind.__name__: kind for kind in (StepFailed, ToolFailed, ToolDenied, GateClosed, WaitTimeout, ModelError)
}
"""What an operation may raise, by the name under which it is recorded."""


class JournalReplay(ABC):
    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self.scopes = Scopes(entries)
        self.unawaited: list[Operation[Any]] = []
        self.closed = False
        self.mismatch: str | None = None
        """How the code differs from the one that was recorded."""
        self._loop = asyncio.get_running_loop()

    async def play(self, function: CodeAgent, ctx: Context, prefix: str = "") -> Any:
        """The function from its beginning to its end, or to where it cannot go on."""
        current.set(self.scopes.open(prefix))
        result = await _without_exits(function(ctx))
        self.require_visited("the function returned")
        return result

    async def perform(self, operation: PlannedOperation) -> Any:
        """One operation, in the branch of whoever awaits it."""
        scope = self._scope(operation)
        if scope.unwound:
            await asyncio.sleep(0)  # code that tries it for ever must not stop the worker
            raise Unwind
        try:
            return await self._resolve(scope, operation)
        except Unwind:
            scope.unwound = True
            raise

    async def _resolve(self, scope: Scope, operation: PlannedOperation) -> Any:
        self.boundary()
        key, entry = self._visit(scope, operation)
        if entry is not None and entry.status is not EntryStatus.OPEN:
            return await self._replay_entry(entry)
        scope.busy = key
        try:
            return await self.live(scope, key, entry, operation)
        finally:
            if not self.under_way(key):
                scope.busy = None

    async def branch(self, branches: Sequence[Awaitable[Any]], return_exceptions: bool) -> list[Any]:
        key = await self.perform(operations.plan_gather(len(branches)))
        parent = current.get()
        parent.busy = key
        scopes = [self.scopes.open(f"{key}/{number}/") for number in range(len(branches))]
        tasks = [self._branch_task(scope, branch) for scope, branch in zip(scopes, branches, strict=True)]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            parent.busy = None
            parent.unwound = parent.unwound or any(scope.unwound for scope in scopes)
        results = [_result_of(task) for task in tasks]
        for end in results:
            if isinstance(end, BaseException) and not isinstance(end, Exception):
                raise end
        for end in results:
            if isinstance(end, Exception) and not return_exceptions:
                raise end
        return results

    def _branch_task(self, scope: Scope, branch: Awaitable[Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(current.set, scope)

        async def run() -> Any:
            result = await _without_exits(branch)
            if scope.unvisited is not None:
                self.require_visited(f"the branch `{scope.prefix}` ended")
            return result

        return self._loop.create_task(run(), context=context)

    def require_visited(self, when: str) -> None:
        entry = self.scopes.unvisited()
        if entry is not None and self.mismatch is None and not self.stopped:
            self.mismatch = f"expected {entry.kind} `{entry.key}`, and {when}"
        if self.mismatch is not None:
            raise Unwind

    def _visit(self, scope: Scope, operation: PlannedOperation) -> tuple[str, JournalEntry | None]:
        try:
            return scope.visit(operation.kind, operation.name, operation.input_hash)
        except Mismatch as error:
            self.mismatch = self.mismatch or str(error)
            raise Unwind from None

    def _scope(self, operation: PlannedOperation) -> Scope:
        if self.closed:
            raise ContextMisused(f"The context was used for {operation.kind} `{operation.name}` after its job ended.")
        try:
            foreign = asyncio.get_running_loop() is not self._loop
            scope = current.get()
        except (RuntimeError, LookupError):
            foreign = True
        if foreign:
            raise ContextMisused(
                f"The context was used for {operation.kind} `{operation.name}` outside of its agent's function.",
                hint="Use it only in the function itself and in the branches of `ctx.gather`, never in another thread.",
            )
        if scope.busy is not None:
            raise ContextMisused(
                f"{operation.kind} `{operation.name}` was begun while `{scope.busy}` of the same branch is under way.",
                hint="Await one operation after the other, outside of the functions of steps; for several at once use "
                "`ctx.gather`, and the `timeout` of an operation instead of `asyncio.timeout`.",
            )
        return scope

    async def _replay_entry(self, entry: JournalEntry) -> Any:
        if entry.status is EntryStatus.FAILED:
            raise restore_error(entry.error or {})
        return decode_result(entry.kind, entry.name, await self.result_of(entry), entry.key)

    @abstractmethod
    async def live(self, scope: Scope, key: str, entry: JournalEntry | None, operation: PlannedOperation) -> Any:
        """An operation that is not settled. ``entry``: it was begun before."""

    @abstractmethod
    async def result_of(self, entry: JournalEntry) -> Any:
        """What was recorded, also where it is kept elsewhere."""

    @abstractmethod
    def boundary(self) -> None:
        """Between two operations: raises `Unwind` where nothing may begin any more."""

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether the function was stopped before its end."""

    @abstractmethod
    def now(self) -> datetime: ...

    def under_way(self, key: str) -> bool:  # noqa: ARG002
        """Whether an operation goes on although nobody awaits it any more."""
        return False


def decode_result(kind: EntryKind, name: str, result: Any, key: str) -> Any:
    """A recorded result as the agent gets it."""
    if kind is EntryKind.APPROVAL:
        return Decision(**result)
    if kind is EntryKind.GATHER:
        return key
    if kind is EntryKind.SLEEP:
        return None
    if kind is EntryKind.VALUE and name == "now":
        return datetime.fromisoformat(result)
    if kind is EntryKind.VALUE and name == "uuid":
        return UUID(result)
    return result


def restore_error(error: dict[str, Any]) -> CortexError:
    kind = FAILURES.get(error.get("type", ""), StepFailed)
    more: dict[str, Any] = {"status": error.get("status")} if kind is ModelError else {}
    if kind is GateClosed:
        more = {"questions": error.get("questions")}
    return kind(error.get("message", "It failed."), code=error.get("code"), hint=error.get("hint"), **more)


def describe_error(error: CortexError) -> dict[str, Any]:
    """As it is recorded, so that `restore_error` makes the same of it."""
    row: dict[str, Any] = {
        "type": type(error).__name__, "message": storable(error.message), "code": storable(error.code),
        "hint": storable(error.hint),
    }  # fmt: skip
    if isinstance(error, GateClosed):
        return {**row, "questions": error.questions}
    return {**row, "status": error.status} if isinstance(error, ModelError) else row


async def _without_exits(running: Awaitable[Any]) -> Any:
    """What an agent raises ends its job, never the worker around it."""
    try:
        return await running
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error.code}") from error
    except KeyboardInterrupt as error:
        raise RuntimeError("KeyboardInterrupt") from error


def _result_of(task: asyncio.Task[Any]) -> Any:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error


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
