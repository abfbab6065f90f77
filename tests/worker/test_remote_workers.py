"""Workers without a database: the plane runs their attempts, and sends them the calls alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import orjson
import pytest

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError
from cortex_plane.jobs.model import remote_work
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.remote_work import Hello, LinkClosed
from cortex_plane.jobs.verbs import jobs, workers
from cortex_plane.kernel.errors import CortexError, SetupError, TooMany, Unauthenticated
from cortex_plane.tenancy.model.access import Actor, KeyDraft
from cortex_plane.tenancy.verbs import frame, keys
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.remote import host as host_module
from cortex_plane.worker.remote import stand_ins
from cortex_plane.worker.remote.functions import offered_app
from cortex_plane.worker.remote.host import HostParts, RemoteWorkers
from cortex_plane.worker.remote.runner import RemoteWorker
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.gated import Desk, atlas, gate, get, governed, question, say
from tests.fixtures.people import World
from tests.fixtures.tool_confirmations import offered
from tests.fixtures.workers import (
    FAST,
    KEY,
    Gate,
    actions,
    call,
    ended,
    make_agent,
    steps_of,
    submit,
    turn,
    until,
    whole,
)

BRISK = replace(FAST, adoption_seconds=1.2, dispatch_seconds=0.5)


class MemoryLink:
    """One end of a link within a process."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other: MemoryLink
        self.is_cut = False
        self.waiting: set[asyncio.Future[bytes | None]] = set()
        self.sent: list[bytes] = []

    @classmethod
    def pair(cls) -> tuple[MemoryLink, MemoryLink]:
        one, two = cls(), cls()
        one.other, two.other = two, one
        return one, two

    async def send(self, content: bytes) -> None:
        if self.is_cut or self.other.is_cut:
            raise LinkClosed("cut")
        self.sent.append(content)
        self.other.incoming.put_nowait(content)

    async def receive(self) -> bytes:
        self.waiting.add(getting := asyncio.ensure_future(self.incoming.get()))
        try:
            content = await getting
        except asyncio.CancelledError:
            if not self.is_cut:
                raise
            content = None
        finally:
            getting.cancel()
            self.waiting.discard(getting)
        if content is None:
            self.incoming.put_nowait(None)
            raise LinkClosed("cut")
        return content

    async def close(self) -> None:
        """What was sent before arrives."""
        for end in (self, self.other):
            end.is_cut = True
            end.incoming.put_nowait(None)

    def cut(self) -> None:
        """Nothing arrives any more."""
        for end in (self, self.other):
            end.is_cut, end.incoming = True, asyncio.Queue()
            end.incoming.put_nowait(None)
            for waiter in end.waiting:
                waiter.cancel()


async def worker_key(world: World, *apps: str, maker: Actor | None = None) -> Actor:
    new = await keys.create_key(world.db, maker or world.admin.actor, KeyDraft(name="remote", apps=list(apps)))
    assert new.secret is not None
    return await frame.authenticate_key(world.db, new.secret)


@dataclass
class Remote:
    """A remote worker and its plane, with the ends of their links."""

    worker: RemoteWorker
    hosts: RemoteWorkers
    actor: Actor
    plane_ends: list[MemoryLink] = field(default_factory=list)
    worker_ends: list[MemoryLink] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    revoked: bool = False
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[MemoryLink]:
        plane_end, worker_end = MemoryLink.pair()
        self.plane_ends.append(plane_end)
        self.worker_ends.append(worker_end)

        async def check_key() -> None:
            if self.revoked:
                raise Unauthenticated("This key was revoked.", code="key_revoked")

        task = asyncio.create_task(self.hosts.serve(plane_end, self.actor, check_key))
        self.serving.add(task)
        try:
            yield worker_end
        finally:
            worker_end.cut()

    def invokes(self) -> list[dict[str, Any]]:
        messages = [orjson.loads(each) for end in self.plane_ends for each in end.sent]
        return [message for message in messages if message["kind"] == "invoke"]

    async def settled(self) -> None:
        await asyncio.gather(*self.serving, return_exceptions=True)


@contextlib.asynccontextmanager
async def remote_worker(
    world: World, *apps: App, actor: Actor | None = None, hosts: RemoteWorkers | None = None
) -> AsyncIterator[Remote]:
    hosts = hosts or RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    actor = actor or await worker_key(world, *(app.name for app in apps))
    remote = Remote(None, hosts, actor)  # type: ignore[arg-type]
    remote.worker = RemoteWorker(apps, remote.connect, concurrency=4, name="afar", grace_seconds=5)
    task = asyncio.create_task(remote.worker.run(lambda _: remote.ready.set()))
    try:
        async with asyncio.timeout(10):
            waiting = asyncio.create_task(remote.ready.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if task.done():
            task.result()
        yield remote
    finally:
        remote.worker.stop()
        await asyncio.wait([task], timeout=10)
        await hosts.close()
        await remote.settled()
        if (
            task.done()
            and not task.cancelled()
            and task.exception() is not None
            and remote.ready.is_set()
            and not remote.revoked
        ):
            task.result()


def tool_app(acts: list[str]) -> App:
    app = App("tests", instructions="Be brief.")

    @app.tool(read_only=True)
    async def look(at: str) -> str:
        return f"saw {at}"

    @app.tool
    def act(word: str, ctx: ToolContext) -> dict[str, Any]:
        """Acts in a thread, and remembers."""
        before = ctx.state.get("count", 0)
        ctx.state.set("count", before + 1)
        acts.append(word)
        return {"word": word, "count": before + 1, "key": ctx.idempotency_key}

    @app.tool
    async def refuse(word: str) -> str:
        raise ToolError(f"not {word}")

    return app


@pytest.mark.proves("D.1070")
async def test_a_worker_without_a_database_runs_the_tools_of_an_agent(world: World) -> None:
    acts: list[str] = []
    script = [
        turn(call("look", at="x")),
        turn(call("act", word="a"), call("act", word="b")),
        turn(call("refuse", word="c")),
    ]
    agent = await make_agent(world, script)
    async with remote_worker(world, tool_app(acts)) as remote:
        job = await ended(world, await submit(world, agent))
        assert job.status is JobStatus.COMPLETED, job.error_message
        assert acts == ["a", "b"]
        # What takes no context is sent nothing of the job but its arguments.
        by_name = {each["name"]: each for each in remote.invokes()}
        assert by_name["look"]["context"] is None
        assert by_name["act"]["context"]["state"] == {"count": "1"}
        assert by_name["act"]["begin_before"] is not None
        (row,) = [each for each in await workers.list_workers(world.db, world.admin.actor) if each.name == "afar"]
        assert row.org_id == world.org_id
        assert row.alive
    calls = [each for step in await steps_of(world, job.id) for each in step.calls]
    assert [each.status for each in calls] == ["completed", "completed", "completed", "failed"]
    assert calls[3].error == "not c Nothing was changed: correct the call, or go another way."
    assert await whole(world)


def gated_app(gate: Gate, acts: list[str], **options: Any) -> App:
    """One tool that acts, and then stands in the gate."""
    app = App("tests")

    @app.tool(**options)
    async def act(ctx: ToolContext) -> str:
        acts.append(ctx.idempotency_key)
        if len(acts) == 1:
            await gate.passed()
        return "acted"

    return app


@pytest.mark.proves("D.1071")
async def test_a_call_whose_link_is_lost_is_settled_as_it_declares_and_never_before_it_is_over(world: World) -> None:
    gate, acts = Gate(), list[str]()
    agent = await make_agent(world, [turn(call("act"))])
    async with remote_worker(world, gated_app(gate, acts, timeout=1.0)) as remote:
        id = await submit(world, agent)
        await gate.entered.wait()
        remote.worker_ends[0].cut()
        # Given back at once, claimed again over the next link, and nobody asks while the first call may still act.
        job = await until(world, id, JobStatus.SLEEPING, JobStatus.PAUSED)
        assert job.status is JobStatus.SLEEPING
        job = await ended(world, id)
        assert job.status is JobStatus.PAUSED
        gate.opened.set()
    (first,) = (await steps_of(world, id))[0].calls
    assert (first.status, len(acts)) == ("uncertain", 1)
    assert "worker_lost" not in await actions(world, job)
    assert await whole(world)


@pytest.mark.proves("D.1071")
async def test_a_lost_call_with_a_key_is_sent_again_over_the_next_link(world: World) -> None:
    gate, acts = Gate(), list[str]()
    agent = await make_agent(world, [turn(call("act"))])
    async with remote_worker(world, gated_app(gate, acts, timeout=0.5, on_uncertain="retry_with_key")) as remote:
        id = await submit(world, agent)
        await gate.entered.wait()
        remote.worker_ends[0].cut()
        job = await ended(world, id)
        gate.opened.set()
    assert job.status is JobStatus.COMPLETED
    assert len(acts) == 2
    assert len(set(acts)) == 1


@pytest.mark.proves("D.1071")
async def test_a_probe_runs_where_the_tool_runs(world: World) -> None:
    gate, acts = Gate(), list[str]()

    async def look(ctx: ToolContext) -> Happened | DidNotHappen:
        return Happened({"seen": len(acts)}) if acts else DidNotHappen()

    agent = await make_agent(world, [turn(call("act"))])
    async with remote_worker(world, gated_app(gate, acts, timeout=0.5, on_uncertain="probe", probe=look)) as remote:
        id = await submit(world, agent)
        await gate.entered.wait()
        remote.worker_ends[0].cut()
        job = await ended(world, id)
        gate.opened.set()
        assert [each["target"] for each in remote.invokes()] == ["tool", "probe"]
    assert (job.status, len(acts)) == (JobStatus.COMPLETED, 1)
    (settled,) = (await steps_of(world, id))[0].calls
    assert (settled.status, settled.settled_by) == ("completed", "probe")


@pytest.mark.proves("D.1072")
async def test_a_call_that_arrives_late_is_not_begun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []
    app = App("tests")

    @app.tool
    async def act() -> str:
        acts.append("x")
        return "acted"

    agent = await make_agent(world, [turn(call("act"))])
    async with remote_worker(world, app) as remote:
        # The worker was stopped while the message stood in its buffer: its clock went on.
        late = 1

        def clock() -> float:
            nonlocal late
            late, lag = 0, 3600 * late
            return ticks() + lag

        monkeypatch.setattr("cortex_plane.worker.remote.functions.ticks", clock)
        job = await ended(world, await submit(world, agent))
        assert (job.status, acts) == (JobStatus.COMPLETED, ["x"])
        assert [each["target"] for each in remote.invokes()] == ["tool", "tool"]
    (sent,) = (await steps_of(world, job.id))[0].calls
    assert sent.attempt == 2


@pytest.mark.proves("D.1073")
async def test_a_worker_is_cut_off_at_once_when_its_key_ends(world: World) -> None:
    gate, acts = Gate(), list[str]()
    agent = await make_agent(world, [turn(call("act"))])
    async with remote_worker(world, gated_app(gate, acts)) as remote:
        id = await submit(world, agent)
        await gate.entered.wait()
        remote.revoked = True
        async with asyncio.timeout(10):
            await remote.settled()
        assert (await until(world, id, JobStatus.RUNNING)).epoch >= 1
        gate.opened.set()
    (row,) = [each for each in await workers.list_workers(world.db, world.admin.actor) if each.name == "afar"]
    assert not row.alive


@pytest.mark.proves("D.1073")
async def test_a_worker_gets_the_jobs_of_its_org_and_its_apps_alone(world: World, other: World) -> None:
    acts: list[str] = []
    mine, theirs = (
        await make_agent(world, [turn(call("act", word="mine"))]),
        await make_agent(other, [turn(call("act", word="theirs"))]),
    )
    elsewhere = await make_agent(world, [turn(call("act", word="elsewhere"))], app="default", slug="elsewhere")
    foreign_jobs = [await submit(other, theirs), await submit(world, elsewhere)]
    async with remote_worker(world, tool_app(acts)):
        job = await ended(world, await submit(world, mine))
    assert job.status is JobStatus.COMPLETED
    assert acts == ["mine"]
    for owner, id in zip((other, world), foreign_jobs, strict=True):
        assert (await jobs.get(owner.db, owner.admin.actor, id)).status is JobStatus.PENDING


async def refusal(world: World, app: App, actor: Actor) -> SetupError:
    with pytest.raises(SetupError) as refused:
        async with remote_worker(world, app, actor=actor):
            pass
    return refused.value


@pytest.mark.proves("D.1074")
async def test_a_key_is_for_the_apps_that_it_names(world: World) -> None:
    error = await refusal(world, tool_app([]), await worker_key(world, "another"))
    assert error.code == "app_not_in_key"


@pytest.mark.proves("D.1074")
async def test_no_remote_worker_changes_the_tools_of_an_app_of_the_platform(world: World) -> None:
    await agents_store.publish_tools(world.db, list(tool_app([]).versions))
    key = await worker_key(world, "tests", maker=replace(world.admin.actor, platform=False))
    async with remote_worker(world, tool_app([]), actor=key):
        pass  # the same tools change nothing
    harmless = App("tests")

    @harmless.tool(read_only=True)
    async def refuse(word: str) -> str:
        return word

    error = await refusal(world, harmless, key)
    assert error.code == "app_of_others"
    async with remote_worker(world, harmless):  # a platform key made this one
        pass


@pytest.mark.proves("D.1111")
async def test_what_a_remote_worker_publishes_counts_in_its_org_alone(world: World, other: World) -> None:
    app = App("tests", instructions="Be brief.")

    @app.tool(risk="critical")
    async def read(path: str) -> str:
        """Reads what only this org has."""
        return path

    async with remote_worker(world, app), remote_worker(other, tool_app([])):  # the name of the app is nobody's
        shown = await _own_tools(world), await _own_tools(other)
        assert shown == ({"read"}, {"look", "act", "refuse"})
        assert [each.name for each in await workers.list_versions(world.db, world.admin.actor, "tests")] == ["read"]
        assert "read" not in {each.name for each in await workers.list_versions(other.db, other.admin.actor, "tests")}
    risks = []
    for owner in (world, other):
        async with owner.db.transaction(owner.org_id) as tx:
            risks.append(await agents_store.known_risks(tx, ["read"]))
    assert risks == [{"read": "critical"}, {}]


async def _own_tools(world: World) -> set[str]:
    """As the worker publishes them, once it is connected."""
    async with asyncio.timeout(10):
        while True:
            tools = await workers.list_tools(world.db, world.admin.actor)
            if names := {each.name for each in tools if each.app == "tests"}:
                return names
            await asyncio.sleep(0.01)


@pytest.mark.proves("D.1111")
async def test_an_org_has_only_so_many_versions_of_its_tools(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_store, "MOST_OF_ORG", 2)
    for number in range(4):
        version = offered(name=f"tool{number}", digest=f"{number}" * 64, app="tests")
        await agents_store.publish_tools(world.db, [version], world.org_id)
    names = [each.name for each in await workers.list_versions(world.db, world.admin.actor, "tests")]
    assert names == ["tool3", "tool2"]


def hello(app: App, **more: Any) -> bytes:
    message = Hello(
        version=remote_work.VERSION,
        release="0",
        name="x",
        host="h",
        pid=1,
        concurrency=1,
        tick=0.0,
        apps=[offered_app(app)],
    )
    return orjson.dumps({**orjson.loads(remote_work.encode_message(message)), **more})


@contextlib.asynccontextmanager
async def raw_link(world: World, actor: Actor, hosts: RemoteWorkers) -> AsyncIterator[MemoryLink]:
    """A worker that says what a test wants."""
    plane_end, worker_end = MemoryLink.pair()

    async def check_key() -> None:
        pass

    task = asyncio.create_task(hosts.serve(plane_end, actor, check_key))
    try:
        yield worker_end
    finally:
        worker_end.cut()
        await asyncio.wait([task], timeout=10)


async def next_of(link: MemoryLink, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            message: dict[str, Any] = orjson.loads(await link.receive())
            if message["kind"] == kind:
                return message


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"no json", "invalid_message"),
        (b'{"kind": "beat", "tick": 1}', "invalid_message"),
        (b'{"kind": "invoke"}', "invalid_message"),
        ({"version": 99}, "protocol_version"),
        ({"concurrency": 100_000}, "invalid_message"),
        ({"secret": 1}, "invalid_message"),
        ({"apps": []}, "invalid_message"),
    ],
)
@pytest.mark.proves("D.1075")
async def test_a_worker_that_says_what_none_may_is_refused(
    world: World, first: bytes | dict[str, Any], code: str
) -> None:
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    async with raw_link(world, await worker_key(world, "tests"), hosts) as link:
        await link.send(first if isinstance(first, bytes) else hello(tool_app([]), **first))
        assert (await next_of(link, "refusal"))["code"] == code
        with pytest.raises(LinkClosed):
            await next_of(link, "welcome")


@pytest.mark.proves("D.1075")
async def test_only_the_worker_that_was_asked_answers_and_only_once(world: World) -> None:
    app = App("tests")

    @app.tool
    async def act() -> str:
        return "acted"

    agent = await make_agent(world, [turn(call("act")), turn(call("act"))])
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    actor = await worker_key(world, "tests")
    async with raw_link(world, actor, hosts) as link, raw_link(world, actor, hosts) as rival:
        for end in (link, rival):
            await end.send(hello(app))
            await next_of(end, "welcome")
        id = await submit(world, agent)
        asked = asyncio.create_task(next_of(link, "invoke")), asyncio.create_task(next_of(rival, "invoke"))
        done, idle = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        mine, thief = (link, rival) if asked[0] in done else (rival, link)
        invoke = done.pop().result()
        for task in idle:
            task.cancel()
        answer = {"kind": "returned", "id": invoke["id"], "result": '"true"'}
        await thief.send(orjson.dumps({**answer, "result": '"stolen"'}))
        await mine.send(orjson.dumps({**answer, "id": str(uuid4()), "result": '"forged"'}))
        await mine.send(orjson.dumps(answer))
        await mine.send(orjson.dumps({**answer, "result": '"replayed"'}))
        both = asyncio.create_task(next_of(link, "invoke")), asyncio.create_task(next_of(rival, "invoke"))
        done, idle = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        for task in idle:
            task.cancel()
        mine = link if both[0] in done else rival
        second = done.pop().result()
        # An answer to the first call is none to the second.
        await mine.send(orjson.dumps({**answer, "result": '"replayed"'}))
        await mine.send(orjson.dumps({**answer, "id": second["id"], "result": '"second"'}))
        job = await ended(world, id)
        assert job.status is JobStatus.COMPLETED
    results = [each.result for step in await steps_of(world, id) for each in step.calls]
    assert results == ["true", "second"]
    await hosts.close()


@pytest.mark.proves("D.1075")
async def test_a_silent_worker_is_cut_off(world: World) -> None:
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    async with raw_link(world, await worker_key(world, "tests"), hosts) as link:
        await link.send(hello(tool_app([])))
        await next_of(link, "welcome")
        with pytest.raises(LinkClosed):
            await next_of(link, "goodbye")


@pytest.mark.proves("D.1076")
async def test_places_are_shared_between_orgs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "WORKERS_OF_ORG", 1)
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    with hosts.place(world.org_id):
        with pytest.raises(TooMany), hosts.place(world.org_id):
            pass
        with hosts.place(uuid4()):
            pass
    hosts.stop()
    with pytest.raises(CortexError), hosts.place(world.org_id):
        pass


@pytest.mark.proves("D.1070")
async def test_triggers_and_validators_of_gates_run_in_the_remote_worker(world: World) -> None:
    desk, seen = Desk(), list[tuple[Any, ...]]()

    @desk.app.trigger("mood")
    def mood(text: str, params: dict[str, Any]) -> bool:
        seen.append((text, params))
        return "terrible" in text

    @desk.app.validator("calm-name")
    async def check(answer: Any) -> str | None:
        seen.append((answer,))
        return None if answer == "Ada" else "somebody else"

    trigger = {"type": "custom", "trigger_id": "mood", "params": {"threshold": -0.5}}
    asks = question("name", "text", "Your name?", validation={"custom_validator": "calm-name"})
    script = [turn(get()), turn(say("upset", name="Bob")), turn(say("upset", name="Ada")), turn(get())]
    agent = await governed(world, atlas(gate("upset", trigger, questions=[asks])), *script)
    async with remote_worker(world, desk.app):
        job = await ended(world, await submit(world, agent, {"text": "This is terrible"}))
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    assert seen == [("This is terrible", {"threshold": -0.5}), ("Bob",), ("Ada",)]


@pytest.mark.proves("D.1071")
async def test_a_call_that_takes_too_long_is_over_where_it_ran(world: World) -> None:
    ended_there = asyncio.Event()
    app = App("tests")

    @app.tool(timeout=0.2)
    async def act() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended_there.set()

    agent = await make_agent(world, [turn(call("act"))])
    async with remote_worker(world, app):
        job = await ended(world, await submit(world, agent))
        assert ended_there.is_set()
    (slow,) = (await steps_of(world, job.id))[0].calls
    assert (job.status, slow.status) == (JobStatus.PAUSED, "uncertain")
    assert slow.error == "`act` did not answer within 0.2 s."
    assert "job_sleeps" not in await actions(world, job), "the worker said so: nobody waits for what is over"


@pytest.mark.proves("D.1073")
async def test_a_worker_that_stops_finishes_its_calls_and_hands_its_jobs_back(world: World) -> None:
    gate_, acts = Gate(), list[str]()
    agent = await make_agent(world, [turn(call("act")), turn(call("act"))])
    async with remote_worker(world, gated_app(gate_, acts)) as remote:
        id = await submit(world, agent)
        await gate_.entered.wait()
        remote.worker.stop()
        await asyncio.sleep(0)
        gate_.opened.set()
        async with asyncio.timeout(10):
            await remote.settled()
    (first,) = (await steps_of(world, id))[0].calls
    assert (first.status, len(acts)) == ("completed", 1)
    assert (await jobs.get(world.db, world.admin.actor, id)).status is JobStatus.RUNNING, "whoever has the app goes on"
    async with remote_worker(world, gated_app(gate_, acts)):
        assert (await ended(world, id)).status is JobStatus.COMPLETED
    assert len(acts) == 2


@pytest.mark.proves("D.1071")
async def test_a_call_of_which_the_worker_says_nothing_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still go on there, so nobody is asked before that cannot be."""
    monkeypatch.setattr(stand_ins, "LAST_WORD_SECONDS", 0.01)
    app = App("tests")

    @app.tool(timeout=0.1)
    async def act() -> None: ...

    agent = await make_agent(world, [turn(call("act"))])
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    async with raw_link(world, await worker_key(world, "tests"), hosts) as link:
        await link.send(hello(app))
        await next_of(link, "welcome")
        id = await submit(world, agent)
        invoke = await next_of(link, "invoke")
        assert (await next_of(link, "cancel"))["id"] == invoke["id"]
        job = await until(world, id, JobStatus.SLEEPING, JobStatus.PAUSED)
        assert job.status is JobStatus.SLEEPING
        beating = asyncio.create_task(_beat(link))
        assert (await ended(world, id)).status is JobStatus.PAUSED
        beating.cancel()
    await hosts.close()


async def _beat(link: MemoryLink) -> None:
    while True:
        await link.send(remote_work.encode_message(remote_work.Beat(tick=ticks())))
        await asyncio.sleep(0.1)
