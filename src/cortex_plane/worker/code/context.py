"""The context of a code agent's function, and the replay of its journal.

Recorded operations return their recorded results; others are performed by an attempt (`performer`), or not at all (`dry_run`).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

import orjson

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.gates.model.gates import END_SESSION
from cortex_plane.jobs.model.journal import EntryKind, EntryStatus, JournalEntry
from cortex_plane.kernel.errors import (
    ContextMisused,
    CortexError,
    GateClosed,
    StepFailed,
    StepNotDone,
    TooLarge,
    ToolDenied,
    ToolFailed,
    WaitTimeout,
)
from cortex_plane.worker.calls import storable
from cortex_plane.worker.code import operations
from cortex_plane.worker.code.operations import PlannedOperation, Scope

T = TypeVar("T")
P = ParamSpec("P")
Fetch = Callable[[UUID], Awaitable[bytes | None]]
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


class ContextState:
    """What the agent keeps with its job. Each use is an operation: it is recorded, and a change is written with its record."""

    def __init__(self, replay: JournalReplay) -> None:
        self._replay = replay

    def get(self, key: str, default: Any = None) -> Operation[Any]:
        async def begin() -> Any:
            values = await self._replay.perform(operations.plan_state_read(key))
            return values[0] if values else default

        return Operation(self._replay, f"The state `{key}`", begin)

    def set(self, key: str, value: Any) -> Operation[None]:
        """Raises `CortexError` with the code `state_too_large` where the state has no room for it."""
        return self._change(key, lambda: operations.plan_state_change(key, value))

    def delete(self, key: str) -> Operation[None]:
        return self._change(key, lambda: operations.plan_state_change(key, deletes=True))

    def _change(self, key: str, plan: Callable[[], PlannedOperation]) -> Operation[None]:
        return Operation(self._replay, f"The state `{key}`", lambda: self._replay.perform(plan()))


class Context:
    """One job of a code agent. Everything it gives was recorded: when the job goes on, the same comes again."""

    def __init__(
        self, replay: JournalReplay, *, payload: dict[str, Any], job_id: UUID, session_id: UUID, agent: str,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.payload, self.job_id, self.session_id = payload, job_id, session_id
        self.agent = agent
        """Its slug."""
        self.config: Mapping[str, Any] = config or {}
        """The keys of the agent's `skill_config` that the plane does not read itself."""
        self.state = ContextState(replay)
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
        repeatable: bool = False,
        on_uncertain: OnUncertain | str | None = None,
        probe: Callable[..., Any] | None = None,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Operation[T]: ...

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        repeatable: bool = False,
        on_uncertain: OnUncertain | str | None = None,
        probe: Callable[..., Any] | None = None,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Operation[T]: ...

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        repeatable: bool = False,
        on_uncertain: OnUncertain | str | None = None,
        probe: Callable[..., Any] | None = None,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Operation[Any]:
        """Call a function and record what it returned, as JSON.

        With ``repeatable`` it may run again if the worker dies before that, and after an error as often as ``retries`` says. Else it is
        written before and after like a call of a tool, and settled as ``on_uncertain`` says where nobody knows its outcome
        (``ask_human`` unless given). Raises `StepFailed` where the function failed."""
        plan = operations.plan_step
        return self._operation(
            f"The step `{name}`", plan, name, function, args, retries, timeout, repeatable, on_uncertain, probe
        )

    def tool(self, name: str, /, **arguments: Any) -> Operation[Any]:
        """Call a tool of the app: by its policies, approvals and ledger. Raises `ToolFailed` or `ToolDenied`."""
        return self._operation(f"The tool `{name}`", operations.plan_tool, name, arguments)

    def end_session(self, reason: str = "") -> Operation[Any]:
        """End the session for good, once none of its jobs is open any more: the function may still return its answer."""
        return self.tool(END_SESSION, reason=reason)

    def answer(self, gate: str, answers: Mapping[str, Any], *, call: str | None = None) -> Operation[bool]:
        """Answer a gate that `GateClosed` told of: whether it is passed. ``call`` names the call that it stops, where it
        stops several. Raises `GateClosed` where it takes no more answers, `ToolFailed` where it does not wait for any."""

        async def begin() -> bool:
            return check_passed(await self._replay.perform(operations.plan_answer(gate, answers, call)))

        return Operation(self._replay, f"The answer to `{gate}`", begin)

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
        plan = operations.plan_approval
        return self._operation("The request for approval", plan, action, details, approvers, timeout, quorum, clearance)

    def ask(
        self,
        question: str,
        *,
        choices: Sequence[str] | None = None,
        schema: Mapping[str, Any] | None = None,
        default: Any = None,
        deadline: float | timedelta | None = None,
        approvers: Sequence[UUID | str] | None = None,
    ) -> Operation[Any]:
        """Ask a person: returns their answer, in words, as one of ``choices``, or as an object for a flat JSON ``schema``. Policies
        with the target `plane.ask_person` say who is asked; ``approvers`` (ids of members) only narrows that. Where nobody answers
        before the ``deadline`` (seconds) the answer is ``default``. Without one, or where somebody declines, raises `ToolDenied`."""
        plan = operations.plan_question
        return self._operation("The question", plan, question, choices, schema, default, deadline, approvers)

    def model(
        self, prompt: str, *, system: str | None = None, temperature: float | None = None, max_tokens: int | None = None
    ) -> Operation[str]:
        """Ask the agent's model, without tools, and record its text. Raises `ModelError`."""
        plan = operations.plan_model
        return self._operation("The request to the model", plan, prompt, system, temperature, max_tokens)

    def sleep(self, seconds: float | timedelta | None = None, *, until: datetime | None = None) -> Operation[None]:
        """Go on later. Until then the job holds no worker."""
        return self._operation("The sleep", operations.plan_sleep, seconds, until)

    def wait_event(self, name: str, *, key: str, timeout: float | timedelta | None = None) -> Operation[Any]:
        """The payload of the signal ``name`` with this key, sent before or after. Raises `WaitTimeout`."""
        return self._operation(f"The wait for `{name}`", operations.plan_wait, name, key, timeout)

    def now(self) -> Operation[datetime]:
        """The time of the plane, the same whenever the job goes on."""
        return self._operation("The time", operations.plan_value, "now", self._replay.now)

    def random(self) -> Operation[float]:
        """A number from 0 to 1, the same whenever the job goes on."""
        # Not for secrets: it stands in the journal.
        return self._operation("The number", operations.plan_value, "random", random.random)

    def uuid(self) -> Operation[UUID]:
        return self._operation("The id", operations.plan_value, "uuid", uuid.uuid4)

    def session_context(self) -> Operation[dict[str, Any]]:
        """The `context` of the session: as it was when this was asked first, the same whenever the job goes on."""
        return self._operation("The context", operations.plan_value, "session_context", self._replay.session_context)

    def gather(self, *branches: Awaitable[Any], return_exceptions: bool = False) -> Operation[list[Any]]:
        """All of these at once, each a branch of its own. If one waits, the others go as far as they can; if one raises,
        the others end first. With ``return_exceptions`` what they raised stands among the results."""
        return Operation(self._replay, "The gather", lambda: self._replay.branch(branches, return_exceptions))

    def _operation(
        self, what: str, plan: Callable[P, PlannedOperation], *args: P.args, **kwargs: P.kwargs
    ) -> Operation[Any]:
        return Operation(self._replay, what, lambda: self._replay.perform(plan(*args, **kwargs)))


CodeAgent = Callable[[Context], Awaitable[Any]]
FAILURES: dict[str, type[CortexError]] = {
    kind.__name__: kind
    for kind in (StepFailed, StepNotDone, ToolFailed, ToolDenied, GateClosed, WaitTimeout, ModelError, TooLarge)
}
"""What an operation may raise, by the name under which it is recorded."""
_MORE: dict[type[CortexError], tuple[str, ...]] = {
    ModelError: ("status",), GateClosed: ("questions",), ToolDenied: ("answer",),
}  # fmt: skip


class JournalReplay:
    """Replays a journal and performs nothing: it ends at the first operation that is not recorded. `Performer` goes on there."""

    def __init__(self, entries: Iterable[JournalEntry], fetch: Fetch | None = None) -> None:
        """``fetch`` reads results that are stored apart, by their id."""
        self._fetch = fetch
        self._reached_the_end = False
        self.scopes = operations.Scopes(entries)
        self.unawaited: list[Operation[Any]] = []
        self.closed = False
        self.mismatch: str | None = None
        """How the code differs from the one that was recorded."""
        self._loop = asyncio.get_running_loop()

    async def play(self, function: CodeAgent, ctx: Context, prefix: str = "") -> Any:
        """The function from its beginning to its end, or to where it cannot go on."""
        operations.current.set(self.scopes.open(prefix))
        result = await _without_exits(function(ctx))
        self.require_visited("the function returned")
        return result

    async def perform(self, operation: PlannedOperation) -> Any:
        """One operation, in the branch of whoever awaits it."""
        scope = self._scope(operation)
        if scope.unwound:
            await asyncio.sleep(0)  # code that tries it for ever must not stop the worker
            raise operations.Unwind
        try:
            return await self._resolve(scope, operation)
        except operations.Unwind:
            scope.unwound = True
            raise

    async def _resolve(self, scope: Scope, operation: PlannedOperation) -> Any:
        self.boundary()
        try:
            key, entry = scope.visit(operation.kind, operation.name, operation.input_hash)
        except operations.Mismatch as error:
            self.mismatch = self.mismatch or str(error)
            raise operations.Unwind from None
        if entry is not None and entry.status is EntryStatus.FAILED:
            raise restore_error(entry.error or {})
        if entry is not None and entry.status is EntryStatus.DONE:
            return decode_result(entry.kind, entry.name, await self.result_of(entry), entry.key)
        scope.busy = key
        try:
            return await self.live(scope, key, entry, operation)
        finally:
            if not self.under_way(key):
                scope.busy = None

    async def branch(self, branches: Sequence[Awaitable[Any]], return_exceptions: bool) -> list[Any]:
        key = await self.perform(operations.plan_gather(len(branches)))
        parent = operations.current.get()
        parent.busy = key
        scopes = [self.scopes.open(f"{key}/{number}/") for number in range(len(branches))]
        tasks = [self._branch_task(scope, branch) for scope, branch in zip(scopes, branches, strict=True)]
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            parent.busy = None
            parent.unwound = parent.unwound or any(scope.unwound for scope in scopes)
        errors = [result for result in results if isinstance(result, BaseException)]
        # What is not for the agent to catch comes first.
        for error in sorted(errors, key=lambda error: isinstance(error, Exception)):
            if not isinstance(error, Exception) or not return_exceptions:
                raise error
        return results

    def _branch_task(self, scope: Scope, branch: Awaitable[Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(operations.current.set, scope)

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
            raise operations.Unwind

    def _scope(self, operation: PlannedOperation) -> Scope:
        if self.closed:
            raise ContextMisused(f"The context was used for {operation.kind} `{operation.name}` after its job ended.")
        try:
            foreign = asyncio.get_running_loop() is not self._loop
            scope = operations.current.get()
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

    async def live(self, scope: Scope, key: str, entry: JournalEntry | None, operation: PlannedOperation) -> Any:  # noqa: ARG002
        """An operation that is not settled. ``entry``: it was begun before."""
        self._reached_the_end = True
        raise operations.Unwind

    async def result_of(self, entry: JournalEntry) -> Any:
        content = await self._fetch(entry.result_id) if entry.result_id is not None and self._fetch else None
        return entry.result if content is None else orjson.loads(content)

    def boundary(self) -> None:
        """Between two operations: raises `Unwind` where nothing may begin any more."""

    @property
    def stopped(self) -> bool:
        """Whether the function was stopped before its end."""
        return self._reached_the_end

    def now(self) -> datetime:
        raise NotImplementedError("nothing is performed")

    def session_context(self) -> dict[str, Any]:
        raise NotImplementedError("nothing is performed")

    def under_way(self, key: str) -> bool:  # noqa: ARG002
        """Whether an operation goes on although nobody awaits it any more."""
        return False

    def mismatch_after(self, error: BaseException | None) -> str | None:
        """How the code differs from what was recorded, once the function has ended with ``error``."""
        entry = self.scopes.unvisited()
        if self.mismatch is not None or entry is None:
            return self.mismatch
        if error is not None and not isinstance(error, operations.Unwind):
            return f"expected {entry.kind} `{entry.key}`, and the code raised {type(error).__name__}: {error}"
        return None if self._reached_the_end else f"expected {entry.kind} `{entry.key}`, which did not come"


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
    return UUID(result) if kind is EntryKind.VALUE and name == "uuid" else result


def restore_error(error: dict[str, Any]) -> CortexError:
    kind = FAILURES.get(error.get("type", ""), StepFailed)
    more = {name: error.get(name) for name in _MORE.get(kind, ())}
    return kind(error.get("message", "It failed."), code=error.get("code"), hint=error.get("hint"), **more)


def describe_error(error: CortexError) -> dict[str, Any]:
    """As it is recorded, so that `restore_error` makes the same of it."""
    texts = {name: storable(getattr(error, name)) for name in ("message", "code", "hint")}
    more = {name: getattr(error, name) for name in _MORE.get(type(error), ())}
    return {"type": type(error).__name__, **texts, **more}


async def _without_exits(running: Awaitable[Any]) -> Any:
    """What an agent raises ends its job, never the worker around it."""
    try:
        return await running
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error.code}") from error
    except KeyboardInterrupt as error:
        raise RuntimeError("KeyboardInterrupt") from error


class DryRun(JournalReplay):
    """Also collects the names of steps that declare nothing."""

    def __init__(self, entries: Iterable[JournalEntry], fetch: Fetch | None, undeclared: set[str]) -> None:
        super().__init__(entries, fetch)
        self._undeclared = undeclared

    async def perform(self, operation: PlannedOperation) -> Any:
        if isinstance(operation, operations.PlannedStep) and not (operation.repeatable or operation.on_uncertain):
            self._undeclared.add(operation.name)
        return await super().perform(operation)


NOBODY = UUID(int=0)


async def dry_run(
    agent_function: CodeAgent,
    entries: Sequence[JournalEntry],
    payload: dict[str, Any],
    *,
    job_id: UUID = NOBODY,
    session_id: UUID = NOBODY,
    agent: str = "agent",
    config: Mapping[str, Any] | None = None,
    fetch: Fetch | None = None,
    seconds: float = 10.0,
    undeclared: set[str] | None = None,
) -> str | None:
    """How the code differs from what was recorded; None where it comes to the same place. Performs no operation. The code
    between the operations does run. ``fetch`` reads results that are stored apart, by their id. ``payload`` is the argument
    of the function: in a conversation with the `text` of its messages. ``undeclared`` collects the names of steps that
    declare nothing."""
    replay = DryRun(entries, fetch, set() if undeclared is None else undeclared)
    ctx = Context(replay, payload=payload, job_id=job_id, session_id=session_id, agent=agent, config=config)
    task = asyncio.ensure_future(
        replay.play(agent_function, ctx, operations.round_prefix(operations.last_round(entries)))
    )
    try:
        is_over = bool((await asyncio.wait([task], timeout=seconds))[0])
    finally:
        replay.closed = True
        task.cancel()
        await asyncio.wait([task], timeout=1)
    if not is_over:
        return f"its code did not come to an operation within {seconds:g} s"
    return replay.mismatch_after(None if task.cancelled() else task.exception())
