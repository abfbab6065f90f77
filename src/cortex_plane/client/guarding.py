"""`plane.guard`: any Python function behind the plane.

    @plane.guard("refunds.create", agent="support")
    def refund(order: str, cents: int) -> str: ...

Each call is authorised before it runs, waits for a person where policy says so, runs with the arguments that were approved, and
its outcome stands in the ledger. Where the plane cannot be asked, nothing runs.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import inspect
import os
import re
import threading
import time
import typing
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, cast
from uuid import uuid4

import httpx
import orjson
from pydantic import TypeAdapter

from cortex_plane.agents.model.tools import OnUncertain, is_tool_name
from cortex_plane.calls import routes as call_routes
from cortex_plane.client import dialogue as dialogues
from cortex_plane.client.dialogue import current_call as current_call
from cortex_plane.client.dialogue import require_person
from cortex_plane.client.transport import Plane, problem, send, send_async
from cortex_plane.kernel.canonical import canonical, check_json
from cortex_plane.kernel.errors import CortexError, InvalidInput, Unavailable
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES, Risk
from cortex_plane.kernel.schemas import check_strangers
from cortex_plane.sessions.routes import CREATE_SESSION

F = TypeVar("F", bound=Callable[..., Any])
Answers = Mapping[str, Mapping[str, Any]]
OnGate = Callable[[dict[str, Any]], Any]

NO_TIMEOUT = 86_400.0
"""What is declared of a function that may take as long as it likes: so long nobody begins it again."""
UNDO_SECONDS = 2.0
MAX_OUTSIDE = 10_000
"""Sessions by outside ids whose own ids a process remembers."""
REPORTERS = 4
"""Threads that report outcomes while their callers go on."""
_undoing: set[asyncio.Future[None]] = set()
_OWN = ("self", "cls")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardOptions:
    """What a guard declares about its function."""

    tool: str
    """Empty: named like the function."""
    agent: str
    risk: Risk | None
    read_only: bool
    on_uncertain: OnUncertain
    timeout: float | None
    wait: float
    patience: float
    key: Callable[..., str] | str | None
    probe: Callable[..., Any] | None
    leave_out: frozenset[str]
    answers: Answers
    on_gate: OnGate | None
    report: str
    parks: bool = False
    on_behalf_of: Callable[..., str] | str | None = None


def guard(lines: Lines, declaration: GuardOptions) -> Callable[[F], F]:
    """What `Client.guard` does; see there, also for what is left out."""

    def decorate(function: F) -> F:
        if isinstance(function, classmethod | staticmethod):
            return cast("F", type(function)(decorate(function.__func__)))
        _require_one_act(function)
        options = replace(declaration, tool=declaration.tool or default_name(function))
        _require_sense(options)
        function_guard = Guarded(lines, function, options)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return await function_guard.call_async(args, kwargs)

            return cast("F", call_async)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function_guard.call(args, kwargs)

        return cast("F", call)

    return decorate


def _require_one_act(function: Any) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__qualname__} is a generator: it acts piece by piece, after it was called."
            " Guard a function that does one thing and returns."
        )
    if not inspect.isroutine(function):
        raise TypeError(
            f"A guard is put on a function, and this is a {type(function).__name__}."
            " Write a function that calls it, and guard that one."
        )


def _require_sense(options: GuardOptions) -> None:
    if not is_tool_name(options.tool):
        raise InvalidInput(
            f"`{options.tool[:100]}` is not a name of a tool.",
            hint="Give one: lower-case words with dots between, such as `refunds.create`.",
        )
    if (options.probe is not None) != (options.on_uncertain is OnUncertain.PROBE):
        raise InvalidInput(
            "A guard with `on_uncertain='probe'` needs a `probe`, and no other has one.",
            hint="Give both: the function that looks whether it happened, and that it is to be asked.",
        )
    if options.probe is not None and options.timeout is None:
        raise InvalidInput(
            "A guard with a `probe` needs a `timeout`: before it is over, nobody can look whether it happened.",
            hint="Give the longest time that the function may take, such as `timeout=60`.",
        )
    if options.parks and options.key is None:
        raise InvalidInput(
            "A guard with `parks` needs a `key`: without one nobody could begin a parked call again.",
            hint="Give the key that names the act, such as an order's number.",
        )
    if options.report not in ("now", "later"):
        raise InvalidInput("`report` must be `now` or `later`.", hint="Leave it out to wait for each report.")
    if options.timeout is not None and not 0 < options.timeout <= 86_400:
        raise InvalidInput("`timeout` must be between 0 and 86400 seconds.", hint="Leave it out for none.")


def default_name(function: Any) -> str:
    """`module.function`, as far as that can be a name."""
    module = function.__module__.rpartition(".")[2]
    parts = [] if module == "__main__" else [module]
    parts.append(function.__qualname__.replace("<locals>.", ""))
    return re.sub(r"[^a-z0-9_.]", "_", ".".join(parts).lower())


class Guarded:
    """A function behind the plane."""

    def __init__(self, lines: Lines, function: Callable[..., Any], options: GuardOptions) -> None:
        self._lines, self._function, self._options = lines, function, options
        self._signature = inspect.signature(function)
        names = list(self._signature.parameters)
        within = function.__qualname__.rpartition(".")[0]
        in_class = bool(within) and not within.endswith("<locals>")
        self._own = names[0] if in_class and names and names[0] in _OWN else None

    @functools.cached_property
    def _schema(self) -> dict[str, Any] | None:
        return schema_of(self._function, self._signature, {*self._options.leave_out, self._own or ""})

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound, invocation = self._open(args, kwargs)
        return self.drive(invocation.dialogue(), bound)

    def drive(self, dialogue: dialogues.Dialogue, bound: inspect.BoundArguments | None) -> Any:
        resume: Callable[[], dialogues.Step] = functools.partial(next, dialogue)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                return end.value
            try:
                resume = functools.partial(dialogue.send, self._do(step, bound))
            except BaseException as error:
                resume = functools.partial(dialogue.throw, error)

    def _do(self, step: dialogues.Step, bound: inspect.BoundArguments | None) -> Any:
        """``bound`` is None where only the outcome is left to tell."""
        match step:
            case dialogues.Send():
                return self._lines.send(step)
            case dialogues.Delay(seconds=seconds):
                time.sleep(seconds)
                return None
            case dialogues.Later(session=session, report=report):
                return self._lines.reports.start(session, functools.partial(self.drive, report, None))
            case dialogues.Flush(session=session):
                return self._lines.reports.wait(session)
            case dialogues.Probe(arguments=arguments):
                return dialogues.require_value(self._probe(cast("inspect.BoundArguments", bound), arguments))
            case dialogues.Ask(questions=questions):
                return dialogues.require_value(cast("OnGate", self._options.on_gate)(questions))
            case dialogues.Run():
                call = self._arguments(cast("inspect.BoundArguments", bound), step)
                return self._run(functools.partial(self._function, *call.args, **call.kwargs), step)

    def _run(self, work: Callable[[], Any], step: dialogues.Run) -> Any:
        """In the caller's own thread; only where there is a time to keep, in another one."""
        with dialogues.running_call(step.call_id, step.attempt):
            if self._options.timeout is None:
                return dialogues.require_value(work())
            late = functools.partial(self._late, step)
            return dialogues.require_value(_in_time(work, self._options.timeout, self._options.tool, late))

    def _late(self, step: dialogues.Run, outcome: dict[str, Any]) -> None:
        """Somebody may be asked whether it happened by now: they need not be."""
        if outcome["status"] != "unknown":
            self.drive(step.late(outcome), None)

    def _probe(self, bound: inspect.BoundArguments, arguments: dict[str, Any]) -> Any:
        call = self._with(bound, arguments)
        return cast("Any", self._options.probe)(*call.args, **call.kwargs)

    def _arguments(self, bound: inspect.BoundArguments, step: dialogues.Run) -> inspect.BoundArguments:
        return bound if step.arguments is None else self._with(bound, step.arguments)

    async def call_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound, invocation = self._open(args, kwargs)
        return await self._drive_async(invocation.dialogue(), bound)

    async def _drive_async(self, dialogue: dialogues.Dialogue, bound: inspect.BoundArguments | None) -> Any:
        resume: Callable[[], dialogues.Step] = functools.partial(next, dialogue)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                return end.value
            try:
                resume = functools.partial(dialogue.send, await self._do_async(step, bound))
            except BaseException as error:
                resume = functools.partial(dialogue.throw, error)

    async def _do_async(self, step: dialogues.Step, bound: inspect.BoundArguments | None) -> Any:
        match step:
            case dialogues.Send():
                return await self._lines.send_or_undo(step, self._options.tool)
            case dialogues.Delay(seconds=seconds):
                await asyncio.sleep(seconds)
                return None
            case dialogues.Later(session=session, report=report):
                return self._lines.reports.start_async(session, self._drive_async(report, None))
            case dialogues.Flush(session=session):
                return await self._lines.reports.wait_async(session)
            case dialogues.Probe(arguments=arguments):
                outcome = self._probe(cast("inspect.BoundArguments", bound), arguments)
                return await outcome if inspect.isawaitable(outcome) else outcome
            case dialogues.Ask(questions=questions):
                answers = cast("OnGate", self._options.on_gate)(questions)
                return await answers if inspect.isawaitable(answers) else answers
            case dialogues.Run():
                call = self._arguments(cast("inspect.BoundArguments", bound), step)
                with dialogues.running_call(step.call_id, step.attempt):
                    return await self._in_time_async(self._function(*call.args, **call.kwargs))

    async def _in_time_async(self, running: Awaitable[Any]) -> Any:
        timeout = self._options.timeout
        try:
            async with asyncio.timeout(timeout) as limit:
                return await running
        except TimeoutError as error:
            if limit.expired():
                raise _timed_out(self._options.tool, timeout) from error
            raise

    def _open(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[inspect.BoundArguments, dialogues.Invocation]:
        """Raises for an invalid call before anything is sent."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if self._is_shown(name)}
        try:
            # What is shown is what runs: the caller's own objects may change meanwhile, or be more than they show.
            exact = canonical(arguments)
            check_json(orjson.loads(exact), self._options.tool, MAX_OBJECT_BYTES)
        except InvalidInput as error:
            raise dialogues.NotJson(
                f"{error.message} Nothing was sent.", hint=error.hint or dialogues.NotJson.default_hint
            ) from None
        options = self._options
        draft: dict[str, Any] = {
            "tool": options.tool, "arguments": orjson.loads(exact), "read_only": options.read_only,
            "on_uncertain": options.on_uncertain, "timeout_seconds": options.timeout or NO_TIMEOUT,
            "key": self._key(args, kwargs),
        }  # fmt: skip
        if options.risk is not None:
            draft["risk"] = options.risk
        if self._schema is not None:
            draft["parameters"] = self._schema
        invocation = dialogues.Invocation(
            session=functools.partial(self._lines.session, options.agent, self._person(args, kwargs)), draft=draft, wait=options.wait,
            patience=options.patience, has_probe=options.probe is not None, answers=options.answers,
            has_answerer=options.on_gate is not None, reports_later=options.report == "later",
            plane_url=self._lines.url, parks=options.parks, note_parked=self._lines.note_parked,
        )  # fmt: skip
        return self._with(bound, orjson.loads(exact)), invocation

    def _is_shown(self, name: str) -> bool:
        return name != self._own and name not in self._options.leave_out

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        key = self._options.key
        if key is None:
            return uuid4().hex
        text = key(*args, **kwargs) if callable(key) else key
        if not isinstance(text, str) or not _KEY.fullmatch(text):
            raise InvalidInput(
                "A key must be 1 to 255 printable ASCII characters without spaces. Nothing was sent.",
                hint="Make it from what names the act, such as an order's number.",
            )
        return text

    def _person(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        person = self._options.on_behalf_of
        if person is None:
            return None
        return require_person(person(*args, **kwargs) if callable(person) else person)

    def _with(self, bound: inspect.BoundArguments, arguments: dict[str, Any]) -> inspect.BoundArguments:
        """The call with these arguments instead of those that were shown."""
        call = inspect.BoundArguments(self._signature, cast("Any", dict(bound.arguments)))
        for name, parameter in self._signature.parameters.items():
            if self._is_shown(name) and name in arguments:
                many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
                call.arguments[name] = tuple(arguments[name]) if many else arguments[name]
        return call


def _in_time(work: Callable[[], Any], seconds: float, tool: str, late: Callable[[dict[str, Any]], None]) -> Any:
    """Threads cannot be stopped: one that does not end in time is left behind, and tells ``late`` what became of it."""
    context, end, outcome = contextvars.copy_context(), threading.Event(), {}
    late_end, turn = threading.Event(), threading.Lock()

    def run() -> None:
        try:
            outcome["value"] = context.run(work)
        except BaseException as error:
            outcome["error"] = error
        with turn:
            end.set()
        if late_end.is_set():
            late(
                dialogues.raised(outcome["error"]) if "error" in outcome else dialogues.returned(outcome["value"], tool)
            )

    threading.Thread(target=run, name=f"guard {tool}", daemon=True).start()
    end.wait(seconds)
    with turn:
        if not end.is_set():
            late_end.set()
            raise _timed_out(tool, seconds)
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def _timed_out(tool: str, seconds: float | None) -> dialogues.TimedOut:
    return dialogues.TimedOut(f"`{tool}` did not return within {seconds:g} s; it may still act.")


def schema_of(function: Callable[..., Any], signature: inspect.Signature, hidden: set[str]) -> dict[str, Any] | None:
    """What the arguments may be, from the annotations; None where they do not tell: then nobody can edit them."""
    kinds = inspect.Parameter
    properties: dict[str, Any] = {}
    required: list[str] = []
    try:
        hints = typing.get_type_hints(function)
        for name, parameter in signature.parameters.items():
            if name in hidden:
                continue
            of_one = TypeAdapter(hints[name]).json_schema() if name in hints else {}
            if parameter.kind is kinds.VAR_POSITIONAL:
                properties[name] = {"type": "array", "items": of_one}
            elif parameter.kind is kinds.VAR_KEYWORD:
                properties[name] = {"type": "object", "additionalProperties": of_one}
            else:
                properties[name] = of_one
            required.append(name)
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        check_strangers(schema)
    except Exception:
        return None
    # What refers to definitions of its own would lose them here.
    return None if b'"$ref"' in orjson.dumps(schema) else schema


class Reports:
    """Outcomes that are on their way while their callers go on, by session. Threads of this process and tasks of its event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0
        self._futures: dict[str, set[Future[Any]]] = {}
        self._tasks: dict[tuple[asyncio.AbstractEventLoop, str], set[asyncio.Task[Any]]] = {}

    def start(self, session: str, report: Callable[[], Any]) -> None:
        with self._lock:
            if self._threads is None or self._pid != os.getpid():
                # A forked child has neither the threads nor the reports of its parent.
                self._threads, self._pid, self._futures = ThreadPoolExecutor(REPORTERS, "guard report"), os.getpid(), {}
            threads = self._threads
        try:
            future = threads.submit(report)
        except RuntimeError:  # closed meanwhile, or the interpreter is ending and starts no thread any more
            report()
            return
        waiting = self._futures.setdefault(session, set())
        waiting.add(future)
        future.add_done_callback(waiting.discard)

    def wait(self, *sessions: str, seconds: float | None = None) -> None:
        """Until the reports of these sessions are over, or of all; one that failed has said so in the log."""
        if self._pid == os.getpid():
            keys = sessions or tuple(self._futures)
            wait([future for key in keys for future in tuple(self._futures.get(key, ()))], timeout=seconds)

    def close(self) -> None:
        """End the threads of this process. A report that comes later starts others."""
        with self._lock:
            if self._threads is not None and self._pid == os.getpid():
                self._threads.shutdown(wait=False)
                self._threads = None

    def start_async(self, session: str, report: Coroutine[Any, Any, Any]) -> None:
        key = asyncio.get_running_loop(), session
        task = asyncio.create_task(report)
        self._tasks.setdefault(key, set()).add(task)
        task.add_done_callback(functools.partial(self._over, key))

    def _over(self, key: tuple[asyncio.AbstractEventLoop, str], task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            dialogues.log.warning("An outcome was not reported: its event loop ended. Call `aclose()` before it does.")
        self._tasks[key].discard(task)
        if not self._tasks[key]:
            del self._tasks[key]

    async def wait_async(self, *sessions: str) -> None:
        if not self._tasks:
            return
        loop = asyncio.get_running_loop()
        keys = [key for key in tuple(self._tasks) if key[0] is loop and (not sessions or key[1] in sessions)]
        if tasks := [task for key in keys for task in self._tasks[key]]:
            await asyncio.wait(tasks)


OutsideName: TypeAlias = tuple[str, str, str | None]
"""The agent, the outside id, and the person on whose behalf it works."""


class Lines:
    """Connections to the plane: one pool per process for threads, one per event loop. A forked child makes its own."""

    def __init__(self, plane: Plane) -> None:
        self._plane, self.url = plane, plane.url
        self._pools: dict[int, httpx.HTTPTransport] = {}
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncBaseTransport]
        self._loops = weakref.WeakKeyDictionary()
        self._sessions: dict[tuple[int, str, str | None], str] = {}
        self._names: dict[tuple[int, str, str | None], str] = {}
        self._outside: dict[OutsideName, str] = {}
        self._parked: dict[str, set[str]] = {}
        self.unreported: dict[str, dialogues.Unreported] = {}
        """By call: sent again before the next call is asked about, where calls say which process runs them."""
        self.reports = Reports()
        atexit.register(_at_exit, weakref.ref(self))

    def send(self, step: dialogues.Send) -> Any:
        pid = os.getpid()
        pool = self._pools.get(pid) or self._pools.setdefault(pid, self._plane.connections())
        try:
            answer = send(pool, self._request(step))
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return _decoded(answer)

    async def send_async(self, step: dialogues.Send) -> Any:
        loop = asyncio.get_running_loop()
        line = self._loops.get(loop)
        if line is None:
            line = self._loops[loop] = self._plane.async_connections()
        try:
            answer = await send_async(line, self._request(step))
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return _decoded(answer)

    async def send_or_undo(self, step: dialogues.Send, tool: str) -> Any:
        """Cancelling the call does not cancel the request: it may have arrived."""
        sending = asyncio.ensure_future(self.send_async(step))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            if step.begins and not sending.cancelled():
                undoing = asyncio.ensure_future(self._undone(sending, tool))
                _undoing.add(undoing)
                undoing.add_done_callback(_undoing.discard)
                await asyncio.wait({undoing}, timeout=UNDO_SECONDS)
            raise

    async def _undone(self, sending: asyncio.Future[Any], tool: str) -> None:
        """What has begun by now is not run any more: nobody needs to wonder."""
        try:
            call = await sending
            if call["next"] == "run":
                outcome = {"status": "failed", "error": "not run: cancelled", "attempt": call["attempt"]}
                await self.send_async(dialogues.Send(call_routes.SETTLE_CALL, (call["id"],), outcome))
        except CortexError as error:
            dialogues.log.warning("a cancelled call of %s could not be taken back: %s", tool, error)

    def session(self, agent: str, person: str | None, insist: dialogues.Insist) -> dialogues.Dialogue:
        """The session of this process for an agent, and for the person on whose behalf it works. Threads that open it at the same moment get
        the same one."""
        at = (os.getpid(), agent, person)
        if at not in self._sessions:
            name = self._names.setdefault(at, f"guard-{uuid4().hex}")
            body = {"agent": agent, "kind": "external", "title": f"guarded functions, process {at[0]}"}
            body |= {} if person is None else {"on_behalf_of": person}
            session = yield from insist(dialogues.Send(CREATE_SESSION, (), body, headers={"Idempotency-Key": name}))
            self._sessions[at] = session["id"]
        return self._sessions[at]

    def outside_session(self, at: OutsideName, insist: dialogues.Insist) -> dialogues.Dialogue:
        """The session that the agent's own world names. It outlives this process, which never ends it."""
        if at not in self._outside:
            agent, outside_id, person = at
            body = {"agent": agent, "kind": "external", "outside_id": outside_id}
            body |= {} if person is None else {"on_behalf_of": person}
            session = yield from insist(dialogues.Send(CREATE_SESSION, (), body))
            while len(self._outside) >= MAX_OUTSIDE:
                self._outside.pop(next(iter(self._outside)), None)
            self._outside[at] = session["id"]
        return self._outside[at]

    def forget_outside(self, at: OutsideName, session_id: str) -> None:
        """This one is over: the next one is opened, unless somebody opened it already."""
        if self._outside.get(at) == session_id:
            self._outside.pop(at, None)

    def note_parked(self, session: str, call: str, is_parked: bool) -> None:
        """A session with a parked call is not completed with this process: its key begins it again later."""
        calls = self._parked.setdefault(session, set())
        if is_parked:
            calls.add(call)
        else:
            calls.discard(call)

    def end_sessions(self, seconds: float) -> None:
        """Those of this process that have nothing open. The plane refuses the others: a person decides, or their yes waits."""
        ends = time.monotonic() + seconds
        self.reports.wait(seconds=seconds)
        for at in [at for at in self._sessions if at[0] == os.getpid()]:
            rest = ends - time.monotonic()
            id = self._sessions.pop(at)
            if rest > 0 and not self._parked.get(id):
                try:
                    self.send(dialogues.Send(call_routes.COMPLETE_SESSION, (id,), {}, seconds=rest))
                except Exception:  # noqa: S112 -- it is the end of the process, and nothing depends on it
                    continue

    def close(self) -> None:
        self.end_sessions(2.0)
        self.reports.close()
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        await self.reports.wait_async()
        if self._plane.transport is None:
            await asyncio.to_thread(self.close)
        line = self._loops.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.aclose()

    def _request(self, step: dialogues.Send) -> httpx.Request:
        content = None if step.body is None else orjson.dumps(step.body)
        return self._plane.request(
            step.route, step.values, query=step.query, content=content, headers=step.headers, seconds=step.seconds
        )

    def _silent(self, error: httpx.HTTPError) -> Unavailable:
        return Unavailable(
            f"The plane at {self._plane.url} does not answer: {error or type(error).__name__}. Nothing is run without it.",
            hint="Start it, or set CORTEX_URL; then call the function again.",
        )


def _at_exit(lines: weakref.ref[Lines]) -> None:
    alive = lines()
    if alive is not None:
        alive.end_sessions(2.0)


def _decoded(answer: httpx.Response) -> Any:
    if answer.status_code >= 400:
        raise problem(answer)
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise CortexError(
            f"HTTP {answer.status_code} from {answer.url}: the answer cannot be read.",
            code="unexpected_answer",
            hint="Is this the address of a Cortex Plane?",
        ) from error
