"""What an adapter of an agent framework asks the plane: may this call of a tool run now? It asks before the framework pauses and after
every resume, so a resume itself decides nothing.

    calls = PlaneCalls(plane, agent="support", session=thread_id)
    answer = await calls.authorize("createRefund", {"order": "A-17"}, key=tool_call_id)
    if answer.next is Advice.RUN: ...

Whatever goes wrong on the way, the answer is `STOP` with the reason: a tool runs only where the plane says so.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4

import orjson

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.calls.model import DEFAULT_TIMEOUT, ReportedUsage, call_key
from cortex_plane.calls.routes import REPORT_USAGE, SETTLE_CALL
from cortex_plane.client import dialogue as dialogues
from cortex_plane.kernel.canonical import canonical, check_json
from cortex_plane.kernel.errors import Conflict, CortexError, GateClosed, InvalidInput, TooMany, Unavailable
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES, Risk, adapter

if TYPE_CHECKING:
    from cortex_plane.client.client import Client
    from cortex_plane.client.guarding import Answers, Lines

T = TypeVar("T")
PATIENCE_SECONDS = 10.0
REPORT_SECONDS = 5.0
UNREADABLE = (
    "The plane's answer cannot be read, so nothing runs. Is its address right, and is the client as new as the plane?"
)


class Advice(StrEnum):
    """What an adapter does now."""

    RUN = "run"
    """Run the tool with the `arguments` of the answer, then report what became of it."""
    WAIT = "wait"
    """A person decides, or the session is held: pause, and ask again with the same key later."""
    STOP = "stop"
    """Do not run it; tell the model why."""
    USE = "use"
    """It ran already: give the model the `result`."""
    DOUBT = "doubt"
    """Nobody knows whether it ran: do not run it, and ask again with the same key later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaneAnswer:
    """What the plane says about one call."""

    next: Advice
    tool: str
    """As policies and approvals name it."""
    arguments: dict[str, Any]
    """Those to run."""
    edited: bool = False
    """Whether an approver changed the arguments: say so in the result, since the model's history has its own."""
    reason: str | None = None
    """Why it does not run now, for the model or for people."""
    result: Any = None
    """Of a call that ran; of one that a person answered in its place, their words."""
    call_id: str | None = None
    """Also the key to send to whoever acts twice on what they get twice. None where the plane has no such call."""
    attempt: int = 1
    approval_id: str | None = None
    link: str | None = None
    """Where people decide."""
    deadline: str | None = None
    """Until when they may."""
    questions: tuple[dict[str, Any], ...] = ()
    """Of gates that the agent must answer first."""
    is_guarded: bool = True
    """False where the plane could not be asked and the tool was declared to run then."""
    parks: bool = False
    """As its tool was declared."""

    @property
    def edit_note(self) -> str | None:
        """What to say beside the result of a call whose arguments an approver changed."""
        return (
            f"An approver changed the arguments: it ran with {orjson.dumps(self.arguments).decode()}."
            if self.edited
            else None
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOptions:
    """What an adapter says of one tool."""

    read_only: bool = False
    risk: Risk | str | None = None
    on_uncertain: OnUncertain | str = OnUncertain.ASK_HUMAN
    timeout: float = DEFAULT_TIMEOUT
    """How long a call may take, in seconds: before that nobody asks whether it happened."""
    parameters: Mapping[str, Any] | None = None
    """Its JSON Schema. With it approvers may edit the arguments."""
    wait: float = 0.0
    """Seconds to wait for a person before the answer is `WAIT`."""
    when_unreachable: Literal["stop", "run"] = "stop"
    """`run`: where the plane answers nothing about the call, the tool runs unguarded, and the log says so each time."""
    parks: bool = False
    """`ApprovalPending` out of the tool parks its call, which begins again from its start: all that it does before must bear repetition.
    Without it a person is asked whether it happened."""


PLAIN = ToolOptions()


@dataclass(kw_only=True, slots=True)
class _Runner:
    """The name of this process: a forked child is another one."""

    name: str = field(default_factory=lambda: uuid4().hex)
    pid: int = field(default_factory=os.getpid)
    losses: int = 0
    """How often an outcome got lost here: calls after that are not taken for the same process, so that a repeated one is asked about."""


_runner = _Runner()


def runner_name(base: str | None = None) -> str:
    """A random name of this process, or ``base``, by which the plane tells a call that may have died from one that is under way here."""
    global _runner
    if _runner.pid != os.getpid():
        _runner = _Runner()
    name = base or _runner.name
    return f"{name}.{_runner.losses}" if _runner.losses else name


class _Dialogues:
    """What both faces say; see `PlaneCalls`."""

    def __init__(
        self,
        lines: Lines,
        agent: str,
        session: str,
        names: ToolNames,
        answers: Answers,
        patience: float,
        runner: str | None,
    ) -> None:
        self.lines, self.agent, self.outside_id, self.names = lines, agent, session, names
        self._answers, self._patience, self._runner = answers, patience, runner
        self._used: str | None = None

    def authorize(
        self, name: str, arguments: Mapping[str, Any], key: str, tool: ToolOptions, says: str | None
    ) -> dialogues.Dialogue:
        refuse = functools.partial(PlaneAnswer, tool=name, arguments={})
        try:
            if not isinstance(arguments, Mapping):
                raise InvalidInput(
                    f"The arguments of `{name}` are not an object, but {type(arguments).__name__}.",
                    hint="Give them by name. Nothing was sent.",
                )
            refuse = functools.partial(refuse, arguments=dict(arguments))
            plane_name = self.names.plane_name(name)
            refuse = functools.partial(refuse, tool=plane_name)
            yield from self._report_again()
            return (yield from self._ask(plane_name, arguments, key, tool, says))
        except Exception as error:
            return _refused(refuse, name, error)

    def resume(self, name: str, call_id: str) -> dialogues.Dialogue:
        invocation = self._invocation({"runner": runner_name(self._runner)}, 0)
        try:
            return _answer_of((yield from invocation.ask(call_id)), self.lines.url, parks=False)
        except Exception as error:
            return _refused(functools.partial(PlaneAnswer, tool=name, arguments={}), name, error)

    def _ask(
        self, name: str, arguments: Mapping[str, Any], key: str, tool: ToolOptions, says: str | None
    ) -> dialogues.Dialogue:
        exact = canonical(dict(arguments))
        check_json(orjson.loads(exact), name, MAX_OBJECT_BYTES)
        draft: dict[str, Any] = {
            "tool": name, "arguments": orjson.loads(exact), "read_only": tool.read_only, "on_uncertain": OnUncertain(tool.on_uncertain),
            "timeout_seconds": tool.timeout, "key": call_key(self.outside_id, key), "runner": runner_name(self._runner),
        }  # fmt: skip
        others = {
            "risk": None if tool.risk is None else Risk(tool.risk), "says": says,
            "parameters": None if tool.parameters is None else dict(tool.parameters),
        }  # fmt: skip
        draft |= {field: value for field, value in others.items() if value is not None}
        invocation = self._invocation(draft, tool.wait)
        try:
            call = yield from self._ask_in_session(invocation)
        except Unavailable as error:
            if tool.when_unreachable != "run" or invocation.has_answer:
                raise
            dialogues.log.warning(
                "`%s` runs unguarded, as it is declared to where the plane does not answer: %s", name, error
            )
            return PlaneAnswer(
                next=Advice.RUN, tool=name, arguments=dict(arguments), is_guarded=False, reason=_reason(error), parks=tool.parks
            )  # fmt: skip
        return _answer_of(call, self.lines.url, tool.parks)

    def _ask_in_session(self, invocation: dialogues.Invocation) -> dialogues.Dialogue:
        """One that ended before it was used here is opened anew, once. One that was used here and ended stays so: somebody ended it."""
        try:
            return (yield from self._ask_once(invocation))
        except Conflict as error:
            ended = invocation.session_id
            if error.code != "external_over" or ended is None or ended == self._used:
                raise
        self.lines.forget_outside(self.agent, self.outside_id, ended)
        return (yield from self._ask_once(invocation))

    def _ask_once(self, invocation: dialogues.Invocation) -> dialogues.Dialogue:
        try:
            call = yield from invocation.ask()
        except CortexError as error:
            if invocation.has_answer and error.code != "external_over":
                self._used = invocation.session_id
            raise
        self._used = invocation.session_id
        return call

    def _invocation(self, draft: dict[str, Any], wait: float) -> dialogues.Invocation:
        session = functools.partial(self.lines.outside_session, self.agent, self.outside_id)
        return dialogues.Invocation(
            session=session,
            draft=draft,
            wait=wait,
            patience=self._patience,
            answers=self._answers,
            plane_url=self.lines.url,
        )

    def report(self, answer: PlaneAnswer, outcome: dict[str, Any]) -> dialogues.Dialogue:
        if answer.call_id is not None and answer.next is Advice.RUN:
            call = {"id": answer.call_id, "attempt": answer.attempt, "tool": answer.tool}
            is_known = False
            try:
                is_known = yield from self._invocation({}, 0).report(call, outcome)
            finally:
                if not is_known:
                    self.lines.unreported[answer.call_id] = dialogues.Unreported(call=call, outcome=outcome)

    def _report_again(self) -> dialogues.Dialogue:
        """Before a call is asked about. For the plane one without an outcome is under way here, so that the same call again would run beside
        it. Where its outcome does not get through now either, calls have another runner from now on, and the plane asks a person."""
        for call_id, report in list(self.lines.unreported.items()):
            body = {**report.outcome, "attempt": report.call["attempt"]}
            try:
                yield dialogues.Send(SETTLE_CALL, (call_id,), body, seconds=REPORT_SECONDS)
            except CortexError as error:
                if not report.is_lost and not dialogues.is_settled(error):
                    _runner.losses += 1
                    report.is_lost = True
                if isinstance(error, Unavailable | TooMany):
                    continue
            self.lines.unreported.pop(call_id, None)

    def report_usage(self, usage: ReportedUsage, key: str | None) -> dialogues.Dialogue:
        """What models took is no reason to stop an agent: where it cannot be told, the log says so."""
        invocation = self._invocation({}, 0)
        try:
            session = yield from invocation.session(invocation.insist)
            body = adapter(ReportedUsage).dump_python(usage, mode="json")
            headers = {"Idempotency-Key": uuid4().hex if key is None else call_key(self.outside_id, key)}
            yield from invocation.insist(dialogues.Send(REPORT_USAGE, (session,), body, headers=headers))
        except CortexError as error:
            dialogues.log.warning("what a model took could not be reported: %s", error)


_ADVICE = {"external_held": Advice.WAIT, "request_in_doubt": Advice.DOUBT}
"""By the code of a refusal; all others are `STOP`."""


def _refused(refuse: Callable[..., PlaneAnswer], name: str, error: Exception) -> PlaneAnswer:
    if isinstance(error, GateClosed):
        return refuse(next=Advice.STOP, reason=_reason(error), questions=tuple(error.questions))
    if isinstance(error, CortexError):
        return refuse(next=_ADVICE.get(error.code, Advice.STOP), reason=_reason(error))
    dialogues.log.error("what the plane says about `%s` cannot be read", name, exc_info=error)
    return refuse(next=Advice.STOP, reason=f"{UNREADABLE} ({type(error).__name__})")


def _answer_of(call: dict[str, Any], url: str, parks: bool) -> PlaneAnswer:
    answer = functools.partial(
        PlaneAnswer, tool=call["tool"], arguments=dict(call["arguments"]), edited=call["edited"], call_id=call["id"], attempt=call["attempt"],
        approval_id=call["approval_id"], deadline=call["deadline"], link=dialogues.approval_link(url, call["approval_id"]), parks=parks,
    )  # fmt: skip
    reason = call["reason"]
    match call["next"]:
        case "run":
            return answer(next=Advice.RUN)
        case "use":
            try:
                return answer(next=Advice.USE, result=dialogues.stored_result(call))
            except CortexError as error:
                return answer(next=Advice.USE, reason=error.message)
        case "stop":
            return answer(next=Advice.STOP, reason=reason or "It is over.", result=call["result"])
        case "wait" if call["status"] not in ("intended", "uncertain"):
            return answer(next=Advice.WAIT, reason=reason)
        case _:
            return answer(next=Advice.DOUBT, reason=reason)


def _require_run(answer: PlaneAnswer) -> None:
    if answer.next is not Advice.RUN:
        raise InvalidInput(
            f"`{answer.tool}` may not run: the answer is `{answer.next}`.", hint="Run it only where `next` is `RUN`."
        )


def _reason(error: CortexError) -> str:
    return f"{error.message} {error.hint}" if error.hint else error.message


class PlaneCalls:
    """The calls of one thread, conversation or run of an agent that runs here. `sync` is the same for plain functions.

    ``session`` is what the framework calls it: every process that gives the same one, with the same key of the plane, shares a session.
    Where somebody ends that session, the calls of this object stop. The next object opens a new one: make one for each run or request.
    ``names`` maps the framework's names of tools. ``runner`` names the process that runs the tools, where that is not this one.
    """

    def __init__(
        self,
        plane: Client,
        *,
        agent: str,
        session: str,
        names: ToolNames | None = None,
        answers: Answers | None = None,
        patience: float = PATIENCE_SECONDS,
        runner: str | None = None,
    ) -> None:
        self._dialogues = _Dialogues(plane.lines, agent, session, names or ToolNames(), answers or {}, patience, runner)
        self.sync = SyncPlaneCalls(self._dialogues)

    def is_of(self, plane: Client) -> bool:
        """Whether it asks with this client."""
        return self._dialogues.lines is plane.lines

    async def authorize(
        self, name: str, arguments: Mapping[str, Any], key: str, tool: ToolOptions = PLAIN, *, says: str | None = None
    ) -> PlaneAnswer:
        """May it run now? ``key`` is the framework's id of the call: asked again with it, it never runs twice. Raises nothing."""
        answer: PlaneAnswer = await self._drive(self._dialogues.authorize(name, arguments, key, tool, says))
        return answer

    async def resume(self, name: str, call_id: str) -> PlaneAnswer:
        """May a call that was asked about before, maybe by another process, run now? ``name`` is the plane's name of its tool."""
        answer: PlaneAnswer = await self._drive(self._dialogues.resume(name, call_id))
        return answer

    async def run(self, answer: PlaneAnswer, function: Callable[..., Awaitable[T]]) -> T:
        """Calls it with the arguments of the answer, which must be `RUN`, and reports what became of it: also where it raises or is
        cancelled."""
        _require_run(answer)
        try:
            result = await function(**answer.arguments)
        except BaseException as error:
            await self.raised(answer, error)
            raise
        await self.completed(answer, result)
        return result

    async def completed(self, answer: PlaneAnswer, result: Any) -> None:
        """It ran, and returned this."""
        await self._report(answer, dialogues.returned(result, answer.tool))

    async def failed(self, answer: PlaneAnswer, error: BaseException | str) -> None:
        """It failed, and nothing happened."""
        await self._report(answer, {"status": "failed", "error": dialogues.described(error)})

    async def unknown(self, answer: PlaneAnswer, error: BaseException | str) -> None:
        """It may have happened."""
        await self._report(answer, {"status": "unknown", "error": dialogues.described(error)})

    async def parked(self, answer: PlaneAnswer, reason: str | None = None) -> None:
        """It did nothing that may not be done again, because what it called itself waits. With the same key it begins again."""
        await self._report(answer, {"status": "parked"} | ({"error": reason} if reason else {}))

    async def raised(self, answer: PlaneAnswer, error: BaseException) -> None:
        """It raised this: `ToolError` says that nothing happened; `ApprovalPending` parks a tool that is declared with ``parks``; all else
        may have happened."""
        await self._report(answer, dialogues.raised(error, parks=answer.parks))

    async def report_usage(self, usage: ReportedUsage, *, key: str | None = None) -> None:
        """What one answer of a model took; the same ``key`` is counted once."""
        await self._drive(self._dialogues.report_usage(usage, key))

    async def _report(self, answer: PlaneAnswer, outcome: dict[str, Any]) -> None:
        await self._drive(self._dialogues.report(answer, outcome))

    async def _drive(self, dialogue: dialogues.Dialogue) -> Any:
        resume: Callable[[], dialogues.Step] = functools.partial(next, dialogue)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                return end.value
            try:
                resume = functools.partial(dialogue.send, await self._do(step))
            except BaseException as error:
                resume = functools.partial(dialogue.throw, error)

    async def _do(self, step: dialogues.Step) -> Any:
        match step:
            case dialogues.Send():
                return await self._dialogues.lines.send_or_undo(step, self._dialogues.agent)
            case dialogues.Delay(seconds=seconds):
                await asyncio.sleep(seconds)
            case dialogues.Flush(session=session):
                await self._dialogues.lines.reports.wait_async(session)
        return None


class SyncPlaneCalls:
    """`PlaneCalls` for plain functions: in the caller's own thread, without an event loop."""

    def __init__(self, own: _Dialogues) -> None:
        self._dialogues = own

    def authorize(
        self, name: str, arguments: Mapping[str, Any], key: str, tool: ToolOptions = PLAIN, *, says: str | None = None
    ) -> PlaneAnswer:
        answer: PlaneAnswer = self._drive(self._dialogues.authorize(name, arguments, key, tool, says))
        return answer

    def run(self, answer: PlaneAnswer, function: Callable[..., T]) -> T:
        _require_run(answer)
        try:
            result = function(**answer.arguments)
        except BaseException as error:
            self.raised(answer, error)
            raise
        self.completed(answer, result)
        return result

    def completed(self, answer: PlaneAnswer, result: Any) -> None:
        self._report(answer, dialogues.returned(result, answer.tool))

    def failed(self, answer: PlaneAnswer, error: BaseException | str) -> None:
        self._report(answer, {"status": "failed", "error": dialogues.described(error)})

    def unknown(self, answer: PlaneAnswer, error: BaseException | str) -> None:
        self._report(answer, {"status": "unknown", "error": dialogues.described(error)})

    def parked(self, answer: PlaneAnswer, reason: str | None = None) -> None:
        self._report(answer, {"status": "parked"} | ({"error": reason} if reason else {}))

    def raised(self, answer: PlaneAnswer, error: BaseException) -> None:
        self._report(answer, dialogues.raised(error, parks=answer.parks))

    def report_usage(self, usage: ReportedUsage, *, key: str | None = None) -> None:
        self._drive(self._dialogues.report_usage(usage, key))

    def _report(self, answer: PlaneAnswer, outcome: dict[str, Any]) -> None:
        self._drive(self._dialogues.report(answer, outcome))

    def _drive(self, dialogue: dialogues.Dialogue) -> Any:
        resume: Callable[[], dialogues.Step] = functools.partial(next, dialogue)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                return end.value
            try:
                resume = functools.partial(dialogue.send, self._do(step))
            except BaseException as error:
                resume = functools.partial(dialogue.throw, error)

    def _do(self, step: dialogues.Step) -> Any:
        match step:
            case dialogues.Send():
                return self._dialogues.lines.send(step)
            case dialogues.Delay(seconds=seconds):
                time.sleep(seconds)
            case dialogues.Flush(session=session):
                self._dialogues.lines.reports.wait(session)
        return None
