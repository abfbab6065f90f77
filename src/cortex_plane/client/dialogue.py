"""What a guard says to the plane, and when it lets the function run: written once, without any I/O.

A dialogue is a generator. It yields what must be done next (`Send`, `Run`, `Later`, …) and gets the answer; a driver does
it, in a thread or in an event loop. Every request may be repeated: the key, the name of this try and the number of the attempt
see to it that it counts once.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

import orjson

from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError, UncertainOutcome
from cortex_plane.calls import routes
from cortex_plane.kernel.canonical import canonical, check_json
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, GateClosed, InvalidInput, TooMany, Unavailable
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES
from cortex_plane.kernel.routes import Route

log = logging.getLogger("cortex_plane.guard")

POLL_SECONDS = 30.0
HELD_SECONDS = 1.0
MAX_RENEWALS = 3
MAX_GATES = 20
"""Rounds of questions that are answered before one call; the caller answers the gates that ask more than that."""
_TOLD = "_told_of_a_call"
UNSTORABLE = "unstorable"
NO_CALL: Mapping[str, Any] = {"id": "", "approval_id": None, "key": None, "deadline": None}


class Denied(Forbidden):
    """A policy or a person denied the call. Nothing ran."""

    code = "call_denied"
    default_hint = "Do not call it again with the same arguments; go another way."

    @property
    def answer(self) -> Any:
        """What a person answered in the place of the call; None where nobody did."""
        return self.details.get("answer")


class CallFailed(Conflict):
    """It failed when it was run before, with this key. Nothing ran this time.

    No `ToolError`: that says of the function that raises it that nothing happened, and this may come out of another one.
    """

    code = "call_failed"
    default_hint = "Use a new key to try it again."


class ApprovalPending(Conflict):
    """Nobody has decided yet, and the time to wait is over. Nothing ran. The same key again goes on where this stopped."""

    code = "approval_pending"
    default_hint = "Call it again with the same `key` later; a decision that came meanwhile is used then."

    def __init__(self, message: str, call: Mapping[str, Any] = NO_CALL, link: str | None = None) -> None:
        # Frameworks hand on the text alone: it says where people decide.
        super().__init__(f"{message} People decide at {link}." if link else message)
        self.call_id: str = call["id"]
        self.approval_id: str | None = call["approval_id"]
        self.key: str | None = call["key"]
        self.deadline: str | None = call["deadline"]
        self.link = link


class InDoubt(UncertainOutcome):
    """Nobody knows whether an earlier attempt happened. Nothing ran this time."""

    code = "call_in_doubt"

    def __init__(self, message: str, call: Mapping[str, Any] = NO_CALL) -> None:
        super().__init__(message)
        self.call_id: str = call["id"]
        self.approval_id: str | None = call["approval_id"]
        self.key: str | None = call["key"]


class TimedOut(UncertainOutcome):
    """The function did not return in its time. It may still act; the outcome is reported as unknown."""

    code = "call_timed_out"


class NotJson(InvalidInput, TypeError):
    """An argument cannot be shown to the approver. Nothing was sent."""

    code = "not_json"
    default_hint = "Pass plain JSON values, or name the parameter in `leave_out`."


@dataclass(frozen=True, slots=True)
class CurrentCall:
    """The call that is running."""

    id: str
    """Send it as idempotency key to the service that is called: every attempt has the same one."""
    attempt: int


_current: contextvars.ContextVar[CurrentCall | None] = contextvars.ContextVar("cortex_plane_call", default=None)


def current_call() -> CurrentCall | None:
    """Inside a guarded function, or a tool behind an adapter: the call that is running; None outside of any."""
    return _current.get()


def require_person(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidInput(
            "`on_behalf_of` names nobody. Nothing was sent.", hint="Return the id of a member, or `connection:name`."
        )
    return name


@contextlib.contextmanager
def running_call(id: str, attempt: int) -> Iterator[None]:
    token = _current.set(CurrentCall(id, attempt))
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True, slots=True)
class Send:
    route: Route[Any]
    values: tuple[object, ...] = ()
    """Of the path."""
    body: dict[str, Any] | None = None
    query: dict[str, str] | None = None
    seconds: float = 30.0
    headers: dict[str, str] = field(default_factory=dict)
    begins: bool = False
    """The answer may say that the call has begun."""


@dataclass(frozen=True, slots=True)
class Run:
    """Call the function: with these arguments where somebody edited them, else as it was called."""

    arguments: dict[str, Any] | None
    call_id: str
    attempt: int
    late: Callable[[dict[str, Any]], Dialogue]
    """Tells what became of it after its time was over."""


@dataclass(frozen=True, slots=True)
class Probe:
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """A gate asks: give its answers, or None."""

    questions: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delay:
    seconds: float


@dataclass(frozen=True, slots=True)
class Later:
    """Tell this while the caller goes on."""

    session: str
    report: Dialogue


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait for what is still to be told in a session."""

    session: str


Step = Send | Run | Probe | Ask | Delay | Later | Flush
Dialogue = Generator[Step, Any, Any]
Insist = Callable[[Send], Dialogue]


@dataclass(kw_only=True, slots=True)
class Unreported:
    """What became of a call, which the plane could not be told."""

    call: dict[str, Any]
    outcome: dict[str, Any]
    is_lost: bool = False
    """It was sent once more in vain: the runner has another name since."""


@dataclass(kw_only=True, slots=True)
class Invocation:
    """One call of a guarded function."""

    session: Callable[[Insist], Dialogue]
    """Gives the id of the session, and opens it where it must."""
    draft: dict[str, Any]
    wait: float
    patience: float
    has_probe: bool = False
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By gate, as it is named plainly or with its atlas."""
    has_answerer: bool = False
    reports_later: bool = False
    sender: str = field(default_factory=lambda: uuid4().hex)
    pid: int = field(default_factory=os.getpid)
    ends: float = 0.0
    sent_at: float = 0.0
    """When the last request was sent."""
    last_moment: float = 0.0
    """On our own clock: after it the call may not begin any more."""
    plane_url: str | None = None
    """Where people decide."""
    has_told: bool = False
    """The log says where people decide about this call."""
    parks: bool = False
    """`ApprovalPending` out of the function parks the call: all that the function did before may be done again."""
    note_parked: Callable[[str, str, bool], None] | None = None
    """Remembers, by session and call, that it waits to begin again."""
    session_id: str | None = None
    has_answer: bool = False
    """The plane has said something about this call."""
    only_looks: bool = False
    """`ask` answers `begin` where it could begin, and begins nothing."""

    def dialogue(self) -> Dialogue:
        call = yield from self.ask()
        match call["next"]:
            case "run":
                return (yield from self._run(call))
            case "use":
                return stored_result(call)
            case "stop":
                raise _refusal(call)
            case "probe":
                raise InDoubt(f"Nobody knows whether `{call['tool']}` happened, and this guard has no probe.", call)
            case _ if call["status"] in ("intended", "uncertain"):
                raise InDoubt(f"`{call['tool']}` was not run: {call['reason']}", call)
            case _:
                link = approval_link(self.plane_url, call["approval_id"])
                raise ApprovalPending(f"`{call['tool']}` was not run: {call['reason']}", call, link)

    def ask(self, call_id: str | None = None) -> Dialogue:
        """The call, or the one of this id, with what its caller does now: `run` it and report, `use` its result, `stop`, or `wait` where the time to wait is
        over. `probe` only comes where there is nobody to probe."""
        self.ends = time.monotonic() + self.wait
        look = None if call_id is None else Send(routes.GET_CALL, (call_id,))
        call = yield from self._authorize() if look is None else self.insist(look)
        has_looked, renewals = False, 0
        while True:
            match call["next"]:
                case "use" | "stop" if has_looked and _was_answered(call) and "key" in self.draft:
                    has_looked = False
                    call = yield from self._take_answer(call)
                case "use" | "stop":
                    return call
                case "begin" if self.only_looks:
                    return call
                case "probe" if self.only_looks and self.has_probe:
                    return {**call, "next": "begin"}  # The probe looks when the call is to run.
                case "wait" if time.monotonic() >= self.ends:
                    return call
                case "wait":
                    has_looked = True
                    call = yield from self._wait(call)
                case "probe" if not self.has_probe:
                    return call
                case "probe":
                    call = yield from self._probe(call)
                case "begin" if call["status"] == "intended":
                    # An attempt stands there already. Only its own sender renews it: for anybody else this begins another one.
                    renewals += 1
                    if renewals > MAX_RENEWALS:
                        raise Unavailable("It was not run: this process is held up again and again.")
                    call = yield from self._begin(call, renew=True)
                case "begin":
                    call = yield from self._begin(call)
                case "run" if time.monotonic() < self.last_moment:
                    return call
                case "run" if renewals < MAX_RENEWALS:
                    renewals += 1
                    call = yield from self._begin(call, renew=True)
                case "run":
                    yield from self.report(call, {"status": "failed", "error": "not run: held up again and again"})
                    raise Unavailable("It was not run: this process is held up again and again.")
                case other:
                    raise CortexError(
                        f"The plane says `{other}`, which this client does not know.",
                        code="unexpected_answer",
                        hint="Update the client. Nothing ran.",
                    )

    def _authorize(self) -> Dialogue:
        session = self.session_id = yield from self.session(self.insist)
        yield Flush(session)
        body = {**self.draft, "dispatch": not self.only_looks, "sender": self.sender}
        while True:
            try:
                send = Send(routes.AUTHORIZE_CALL, (session,), body, begins=not self.only_looks)
                return (yield from self._send_through_gates(send, session))
            except Conflict as error:
                if error.code != "external_held" or time.monotonic() >= self.ends:
                    raise
                yield Delay(HELD_SECONDS)

    def _take_answer(self, call: dict[str, Any]) -> Dialogue:
        """What people answered, asked for once more by its key: a look at the call does not say that its agent has the answer."""
        try:
            return (yield from self._authorize())
        except CortexError as error:
            log.warning("the plane does not know that the answer about `%s` arrived: %s", call["tool"], error)
            return call

    def _wait(self, call: dict[str, Any]) -> Dialogue:
        self._tell_where(call)
        seconds = max(0.05, min(self.ends - time.monotonic(), POLL_SECONDS))
        if call["held"]:
            yield Delay(min(HELD_SECONDS, seconds))
            if call["status"] == "intended" and not self.only_looks:
                # It may be ours, begun before somebody held it: the plane answers only its sender.
                return (yield from self._begin(call))
        try:
            return (yield Send(routes.GET_CALL, (call["id"],), query={"wait": f"{seconds:.3f}"}, seconds=seconds + 30))
        except (Unavailable, TooMany):
            # The plane keeps the decision, so waiting loses nothing.
            yield Delay(min(HELD_SECONDS, seconds))
            return call

    def _tell_where(self, call: dict[str, Any]) -> None:
        """In the log, once for each call: whoever runs the program sees why it stands still."""
        link = approval_link(self.plane_url, call["approval_id"])
        if link is not None and not self.has_told:
            self.has_told = True
            log.warning("`%s` waits for a person: %s", call["tool"], link)

    def _begin(self, call: dict[str, Any], *, renew: bool = False, did_not_happen: bool = False) -> Dialogue:
        body = {"input_hash": call["input_hash"], "sender": self.sender}
        body |= {"runner": self.draft["runner"]} if "runner" in self.draft else {}
        body |= {"renew": True} if renew else {}
        body |= {"did_not_happen": True} if did_not_happen else {}
        try:
            send = Send(routes.INTEND_CALL, (call["id"],), body, begins=True)
            return (yield from self._send_through_gates(send, call["session_id"]))
        except Conflict as error:
            if error.code not in _LOOK_AGAIN:
                raise
        if time.monotonic() < self.ends:
            yield Delay(0.05)
        return (yield from self.insist(Send(routes.GET_CALL, (call["id"],))))

    def _send_through_gates(self, send: Send, session: str) -> Dialogue:
        """Gates that ask are answered, where this guard knows the answers; then it is sent again."""
        for _ in range(MAX_GATES):
            try:
                return (yield from self._send_timed(send))
            except GateClosed as error:
                for gate in error.questions:
                    yield from self._answer(error, session, gate)
        return (yield from self._send_timed(send))

    def _answer(self, error: GateClosed, session: str, gate: dict[str, Any]) -> Dialogue:
        name = f"{gate['atlas']}/{gate['gate']}"
        answers = self.answers.get(name, self.answers.get(gate["gate"]))
        has_answers = answers is not None
        if not has_answers and gate.get("more_questions"):
            return  # The error lists only some questions: the others come with the next try.
        if not has_answers and self.has_answerer:
            answers = yield Ask(gate)
        if answers is None:
            raise error
        body = {"gate": name, "answers": dict(answers), "call": gate["call"]}
        try:
            receipt = yield from self.insist(Send(routes.ANSWER_GATE, (session,), body))
        except Conflict as conflict:
            if conflict.code != "gate_not_waiting":
                raise
            return  # Somebody else answered it meanwhile: the call says what is left.
        if not receipt["passed"] and (has_answers or receipt["shut"]):
            # The same answers again would be refused again.
            faults = "; ".join(f"{id}: {fault}" for id, fault in receipt["faults"].items())
            raise GateClosed(
                f"The gate `{gate['gate']}` did not accept its answers: {faults}.",
                hint="Correct the answers and call it again." if not receipt["shut"] else "It is shut: go another way.",
                questions=error.questions,
            )

    def _send_timed(self, send: Send) -> Dialogue:
        """Every try counts its own time: the one that is answered says how long the call may still begin."""
        answer = yield from self.insist(send)
        if answer["dispatch_before"] is not None:
            span = datetime.fromisoformat(answer["dispatch_before"]) - datetime.fromisoformat(answer["now"])
            self.last_moment = self.sent_at + span.total_seconds()
        return answer

    def insist(self, send: Send) -> Dialogue:
        """A plane that does not answer is asked again for a while; then nothing runs."""
        ends = time.monotonic() + self.patience
        pause = 0.05
        while True:
            self.sent_at = time.monotonic()
            try:
                answer = yield send
                self.has_answer = self.has_answer or send.begins
                return answer
            except Unavailable:
                if time.monotonic() + pause >= ends:
                    raise
            except CortexError as error:
                self.has_answer = self.has_answer or send.begins
                may_repeat = isinstance(error, TooMany) or error.code == "retry"
                if not may_repeat or time.monotonic() + pause >= ends:
                    raise
            yield Delay(pause)
            pause = min(pause * 2, 2.0)

    def _probe(self, call: dict[str, Any]) -> Dialogue:
        try:
            outcome = yield Probe(call["arguments"])
        except Exception as error:
            log.warning("probe of %s failed: %r", call["tool"], error)
            outcome = None
        if isinstance(outcome, Happened):
            result, _ = encoded(outcome.result)
            yield from self.report(call, {"status": "completed", "result": result, "probed": True})
            return (yield from self.insist(Send(routes.GET_CALL, (call["id"],))))
        if isinstance(outcome, DidNotHappen):
            return (yield from self._begin(call, did_not_happen=True))
        raise InDoubt(f"Nobody knows whether `{call['tool']}` happened, and its probe could not tell.", call)

    def _run(self, call: dict[str, Any]) -> Dialogue:
        arguments = call["arguments"] if call["edited"] else None
        try:
            value = yield Run(arguments, call["id"], call["attempt"], lambda outcome: self.report(call, outcome))
        except BaseException as error:
            yield from self.report(call, raised(error, parks=self.parks))
            raise
        report = self.report(call, returned(value, call["tool"]))
        if self.reports_later:
            yield Later(call["session_id"], report)
        else:
            yield from report
        return value

    def report(self, call: dict[str, Any], outcome: dict[str, Any]) -> Dialogue:
        """What became of it is worth some patience, and never changes what the caller gets. Returns whether the plane knows it, or knows
        better."""
        if os.getpid() != self.pid:
            return True  # A child of the function came back here too: it is its parent's call.
        send = Send(routes.SETTLE_CALL, (call["id"],), {**outcome, "attempt": call["attempt"]})
        try:
            yield from self.insist(send)
            if self.parks and self.note_parked is not None:
                self.note_parked(call["session_id"], call["id"], outcome["status"] == "parked")
            return True
        except CortexError as error:
            log.error(
                "the outcome of %s (call %s: %s) could not be reported: %s Somebody may be asked whether it happened.",
                call["tool"], call["id"], outcome["status"], error,
            )  # fmt: skip
            return is_settled(error)


def _was_answered(call: dict[str, Any]) -> bool:
    """Whether somebody other than its agent said what became of it."""
    return call["status"] in ("completed", "failed") and call["settled_by"] is not None


def is_settled(error: CortexError) -> bool:
    """Whether a report was refused because the plane knows more about the call than it says."""
    return isinstance(error, Conflict) and error.code != "retry"


_LOOK_AGAIN = frozenset(
    {"arguments_changed", "call_in_doubt", "call_awaiting", "call_refused", "call_settled", "external_held"}
)


def approval_link(plane_url: str | None, approval_id: str | None) -> str | None:
    """Where people decide about a call."""
    return None if plane_url is None or approval_id is None else f"{plane_url.rstrip('/')}/approvals/{approval_id}"


def raised(error: BaseException, *, parks: bool = False) -> dict[str, Any]:
    """It may have happened before it went wrong: only `ToolError` says that it did not, and only of the function that raised it.
    Out of a guarded function inside of another one it says nothing about the outer one. ``parks``: where that one waits for a person, the
    outer one did nothing that may not be done again, and begins again with the same key."""
    if parks and isinstance(error, ApprovalPending):
        return {"status": "parked", "error": described(error)}
    is_own = isinstance(error, ToolError) and not getattr(error, _TOLD, False)
    if is_own:
        setattr(error, _TOLD, True)
    return {"status": "failed" if is_own else "unknown", "error": described(error)}


def returned(value: Any, tool: str) -> dict[str, Any]:
    result, storable = encoded(value)
    if not storable:
        log.info("the result of %s is not JSON: only that it happened is kept", tool)
    return {"status": "completed", "result": result}


def encoded(value: Any) -> tuple[Any, bool]:
    """As the plane stores it. A result that cannot be stored does not undo the call."""
    try:
        check_json(value, "result", MAX_OBJECT_BYTES)
        return orjson.loads(canonical(value)), True
    except CortexError as error:
        return {UNSTORABLE: error.message[:500]}, False


def stored_result(call: dict[str, Any]) -> Any:
    result = call["result"]
    if isinstance(result, dict) and set(result) == {UNSTORABLE}:
        raise CortexError(
            f"`{call['tool']}` happened before, and what it returned then could not be kept: {result[UNSTORABLE]}",
            code="result_not_kept",
            hint="Return JSON from functions whose key may come again.",
        )
    return result


def _refusal(call: dict[str, Any]) -> CortexError:
    reason = call["reason"] or "it is over"
    if call["status"] == "failed":
        return CallFailed(f"`{call['tool']}` failed: {reason}")
    if call["status"] == "answered":
        hint = "Go on with `answer`, what they said."
        return Denied(f"`{call['tool']}` was not run: {reason}", code="call_answered", hint=hint, answer=call["result"])
    return Denied(f"`{call['tool']}` was not run: {reason}")


def require_value(value: Any) -> Any:
    """A plain function that returns something to await has not acted yet: nobody could tell when it does."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError("The guarded function returned something to await: declare it with `async def`.")
    return value


def described(error: BaseException | str) -> str:
    text = str(error) if isinstance(error, ToolError | TimedOut | str) else f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")[:4000]
