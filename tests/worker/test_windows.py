"""Long conversations and long jobs: what the model is told, what is kept, and what a turn costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model import completions
from cortex_plane.agents.model.agents import AgentChange, ModelConfig
from cortex_plane.agents.model.completions import AssistantTurn, ModelError, ModelRequest, ToolTurn, UserTurn
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.db.database import NOBODY
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt, open_sealed
from cortex_plane.jobs.model.jobs import JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.fields import adapter
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.verbs import events, sessions
from cortex_plane.worker.attempt import Attempt
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.approvals import Shipping, decide, pending_soon, ship
from tests.fixtures.people import World, apply_policies
from tests.fixtures.windows import Counting, Listening, memories_of, memory_in, small_agent, users
from tests.fixtures.workers import KEY, Died, Gate, call, died, job_of, leased, submit, turn, until, whole, working
from tests.worker.test_conversations import post, said, say


async def tell(world: World, text: str) -> UUID:
    return (await say(world, text, agent="small")).job_id


class Talk:
    """A conversation, one job after the other, each run to its end without a worker's loop around it."""

    def __init__(self, world: World, model: Listening) -> None:
        self.world, self.model, self.db = world, model, Counting(world.db)

    async def say(self, text: str) -> UUID:
        delivery = await say(self.world, text, agent="small")
        if not hasattr(self, "worker"):
            self.worker, given = await leased(self.world.db, App("tests"))
        else:
            ((given,), _) = await jobs_store.claim_jobs(self.world.db, self.worker.id, ["tests"], 1, NOBODY)
        host = replace(self.worker._host, db=self.db, backends=Backends({"listening": self.model}))
        await Attempt(host, given).run()
        return delivery.session_id


def size(request: ModelRequest) -> int:
    """Of everything that goes over the wire."""
    return len(repr((request.system_prompt, request.turns, request.tools)).encode())


@pytest.mark.proves("D.232")
@pytest.mark.parametrize("turns", [200, pytest.param(500, marks=pytest.mark.soak)], ids=["short", "whole"])
async def test_a_late_turn_costs_what_an_early_one_costs(world: World, turns: int) -> None:
    """Counted: rows that a job reads, and bytes that its model is sent. Nothing of it grows, and nothing is missing."""
    model = Listening()
    await small_agent(world, [], context_tokens=5_000)
    talk = Talk(world, model)
    session_id = await talk.say("Remember that Ann likes tea.")
    for number in range(2, turns + 1):
        session_id = await talk.say(f"message {number:04} {'x' * 80}")
    steps = model.of("step")
    assert len(steps) == turns
    read = [len(row["said"]) + len(row["steps"]) + len(row["calls"]) for row in talk.db.pasts]
    sent = [size(request) for request in steps]
    some = min(turns // 2, 200)
    assert max(read[-some:]) <= max(read[:some])
    assert max(sent[-some:]) <= max(sent[:some])
    assert max(sum(map(completions.of_turn, request.turns)) for request in steps) <= 4_000
    # Between two of them lies most of a window: they are rare.
    kept = await memories_of(world, session_id)
    assert [memory.number for memory in kept] == list(range(1, len(kept) + 1))
    assert 2 < len(model.of("summary")) == len(kept) <= 2 * turns // 20
    for row, request in zip(talk.db.pasts, steps, strict=True):
        covered = row["memory"]["message_seq"] if row["memory"] else 0
        # Every message is covered, or read: none twice, none not at all.
        assert [message["seq"] for message in row["said"]] == list(range(covered + 1, covered + 1 + len(row["said"])))
        told = memory_in(request.turns)
        assert (told is None) == (covered == 0 and len(request.turns) == len(row["said"]))
        assert users(request.turns)[-1] == row["said"][-1]["text"]
        assert not isinstance(request.turns[0], ToolTurn)
    last = memory_in(model.last)
    assert last is not None
    assert last["facts"] == ["Remember that Ann likes tea."]
    assert len(await said(world, session_id)) == 2 * turns
    assert await whole(world)


def looking(result: str = "seen") -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def look(at: int) -> str:
        return f"{at}: {result}"

    return app


@pytest.mark.proves("D.233")
async def test_a_long_job_forgets_its_oldest_steps_and_never_what_it_was_asked(world: World) -> None:
    held: list[int] = []

    async def before(_: ModelRequest) -> None:
        held.append(len(attempt.conversation.turns.entries))

    model = Listening(before)
    agent = await small_agent(world, [turn(call("look", at=n), text=f"Step {n}.") for n in range(60)])
    id = await submit(world, agent, {"text": "Count the ships."})
    worker, given = await leased(world.db, looking("x" * 200))
    attempt = Attempt(replace(worker._host, backends=Backends({"listening": model})), given)
    await attempt.run()
    job = await job_of(world, id)
    assert (job.status, job.step_index) == (JobStatus.COMPLETED, 60)
    assert len(model.of("step")) == 61
    assert max(held) < 40, "what is summarised is not kept in memory either"
    assert len(model.of("summary")) >= 4
    for request in model.of("step"):
        assert users(request.turns) == ["Count the ships."]
        assert sum(map(completions.of_turn, request.turns)) <= 2_000
        pairs = [type(each) for each in request.turns if not isinstance(each, UserTurn)]
        assert pairs == [AssistantTurn, ToolTurn] * (len(pairs) // 2)
    # The numbers of the script's turns did not move, and the newest result was always there.
    for number, request in enumerate(model.of("step")[1:]):
        newest = request.turns[-1]
        assert isinstance(newest, ToolTurn)
        assert newest.results[0].content.startswith(f'"{number}: ')
    # A task's memory is its own: no conversation begins with it.
    assert await memories_of(world, job.session_id) == []
    assert (await sessions.list_job_memories(world.db, world.admin.actor, id)).summary.startswith("agent: Step 0.")
    assert await whole(world)


@pytest.mark.proves("D.234")
async def test_a_resumed_job_reads_only_what_its_memory_does_not_cover(world: World) -> None:
    deaths = [30]

    async def before(request: ModelRequest) -> None:
        if request.purpose == "step" and deaths and request.turn_index == deaths[0]:
            deaths.clear()
            raise Died

    model = Listening(before)
    backends = Backends({"listening": model})
    agent = await small_agent(world, [turn(call("look", at=n)) for n in range(40)])
    id = await submit(world, agent, {"text": "Count the ships."})
    app = looking("x" * 200)
    await died(world.db, app, backends=backends)
    before_death = model.last
    db = Counting(world.db)
    async with working(db, app, backends=backends):
        await until(world, id, JobStatus.COMPLETED)
    (past,) = db.pasts
    assert 0 < len(past["steps"]) < 15
    assert len(past["calls"]) == len(past["steps"])
    assert past["steps"][-1]["step_index"] == 29
    again = [request for request in model.of("step") if request.turn_index == 30]
    assert len(again) == 2
    assert list(again[1].turns) == before_death, "it is asked exactly what it was asked before"
    assert len([step for step in model.of("step") if step.turn_index < 30]) == 30, "no step is done twice"


ASK = """
policies:
  - {name: ask-and-go-on, target: ship, effect: requires_approval, on_deny: continue, approvers: {roles: [admin]}}
  - {name: rest, target: "*", effect: allow}
"""


@pytest.mark.proves("D.234")
async def test_a_no_is_remembered_however_far_back_it_lies(strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, ASK)
    shipping, model = Shipping(), Listening()
    script = [turn(ship()), *(turn(call("look")) for _ in range(12)), turn(ship("2.0")), turn(ship())]
    agent = await small_agent(strict, script, context_turns=6)
    id = await submit(strict, agent)
    async with working(strict.db, shipping.app, backends=Backends({"listening": model})):
        (approval,) = await pending_soon(strict, id)
        await decide(strict, approval, Choice.DENIED, reason="no")
        (other,) = await pending_soon(strict, id)
        assert other.arguments["version"] == "2.0"
        await decide(strict, other, Choice.APPROVED)
        job = await until(strict, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.WAITING_FOR_APPROVAL)
    assert (job.status, shipping.shipped) == (JobStatus.COMPLETED, ["2.0 to production"])
    assert len(model.of("summary")) >= 2
    result = model.last[-1]
    assert isinstance(result, ToolTurn)
    assert result.results[0].is_error


GOOD = '{"summary": "They talked.", "facts": ["Ann likes tea."]}'


@pytest.mark.parametrize(
    ("answers", "by", "asked"),
    [
        ([GOOD], "model", 1),
        (["Sure!", GOOD], "model", 2),
        (["Sure!", "{}"], "extract", 2),
        ([None, None], "extract", 2),
    ],
)
@pytest.mark.proves("D.231")
async def test_a_summary_that_is_none_never_fails_a_job(
    world: World, answers: list[str | None], by: str, asked: int
) -> None:
    model = Listening(summary=lambda times: answers[times - 1])
    await small_agent(world, [], context_turns=4)
    async with working(world.db, looking(), backends=Backends({"listening": model})):
        for text in ("Remember one.", "two"):
            id = await tell(world, text)
            await until(world, id, JobStatus.COMPLETED)
        id = await tell(world, "three")
        job = await until(world, id, JobStatus.COMPLETED)
    summaries = model.of("summary")
    assert len(summaries) == asked
    if asked == 2:
        complaint = summaries[1].turns[-1]
        assert isinstance(complaint, UserTurn)
        assert "is not a summary" in complaint.text
        assert summaries[1].turns[0] == summaries[0].turns[0]
    assert (summaries[0].tools, summaries[0].max_tokens) == ((), 750)
    told = memory_in(model.last)
    assert told is not None
    assert told["facts"] == (["Ann likes tea."] if by == "model" else ["Remember one."])
    (kept,) = await memories_of(world, job.session_id)
    assert (kept.summary, kept.facts, kept.job_id) == (told["summary"], told["facts"], id)
    replay = await events.of_session(world.db, world.admin.actor, job.session_id, 0, 1000)
    (event,) = [event for event in replay.events if event.type == "context_compacted"]
    assert (event.data["by"], event.data["message_seq"], event.data["facts"]) == (by, kept.message_seq, 1)
    entries = await audit.list_entries(world.db, world.admin.actor, job.session_id, 0, 1000)
    assert [entry.action for entry in entries].count("context_compacted") == 1
    # What a summary took counts for the job.
    if by == "model" and asked == 1:
        (worked,) = [request for request in model.of("step") if users(request.turns)[-1] == "three"]
        assert worked.turn_index == 0
    assert await said(world, job.session_id) == [
        each for text in ("Remember one.", "two", "three") for each in (("user", text), ("assistant", f"Re: {text}"))
    ]  # fmt: skip


@pytest.mark.parametrize(("status", "code", "retries"), [(529, None, 1), (None, "model_refused", 0)])
async def test_a_provider_that_gives_no_summary(
    world: World, status: int | None, code: str | None, retries: int
) -> None:
    """An error is tried again, durably; a refusal is not, since an extract will do."""
    failures = [1]

    async def before(request: ModelRequest) -> None:
        if request.purpose == "summary" and failures:
            failures.clear()
            raise ModelError("no", status=status, code=code)

    model = Listening(before)
    await small_agent(world, [], context_turns=4)
    async with working(world.db, looking(), backends=Backends({"listening": model})):
        for text in ("one", "two", "three"):
            id = await tell(world, text)
            job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.status, job.retry_count) == (JobStatus.COMPLETED, retries)
    assert len(model.of("summary")) == 1 + retries
    assert len(await memories_of(world, job.session_id)) == 1
    assert users(model.last)[-1] == "three"


async def test_a_message_larger_than_the_window_is_shortened_and_answered(world: World) -> None:
    model = Listening()
    await small_agent(world, [turn(text="Well.", repeat=True)])
    async with working(world.db, looking(), backends=Backends({"listening": model})):
        id = await tell(world, "BEGIN" + "x" * 60_000 + "END")
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
        assert job.status is JobStatus.COMPLETED
        (short,) = users(model.last)
        assert short.startswith("BEGINxx")
        assert short.endswith("xxEND")
        assert "characters left out" in short
        # The next one does not carry it along.
        await until(world, await tell(world, "next"), JobStatus.COMPLETED)
    assert users(model.last) == ["next"]
    assert all(sum(map(completions.of_turn, request.turns)) <= 2_000 for request in model.requests)
    assert (await said(world, job.session_id))[0][1].endswith("xEND"), "what was said is kept whole"


async def test_old_conversations_without_a_memory_are_caught_up_with(world: World) -> None:
    """They are longer than one question may be, so several are asked, one after the other."""
    model = Listening()
    script = [turn(text="y" * 100, repeat=True)]
    agent = await small_agent(world, script, context_tokens=1_000_000, context_turns=1_000)
    talk = Talk(world, model)
    for number in range(30):
        session_id = await talk.say(f"{number:02} {'x' * 700}")
    assert model.of("summary") == []
    smaller = adapter(ModelConfig).validate_python({**agent.model_config, "context_tokens": 3_000})
    await agents.update_agent(world.db, world.admin.actor, "small", AgentChange(model_config=smaller), None)
    await talk.say("Well?")
    kept = await memories_of(world, session_id)
    assert len(kept) >= 3
    assert [memory.message_seq for memory in kept] == sorted({memory.message_seq for memory in kept})
    assert all(sum(map(completions.of_turn, request.turns)) <= 2_000 for request in model.requests[30:])
    assert users(model.last)[-1] == "Well?"


# What is said meanwhile


async def post_over_http(http: httpx.AsyncClient, world: World, session_id: UUID, text: str) -> dict[str, Any]:
    answer = await http.post(f"/v1/sessions/{session_id}/messages", json={"text": text}, headers=world.admin.headers)
    assert answer.status_code == 201, answer.text
    delivery: dict[str, Any] = answer.json()
    return delivery


@pytest.mark.proves("D.235")
async def test_what_is_said_while_a_job_runs_is_heard_at_the_next_boundary(
    world: World, http: httpx.AsyncClient
) -> None:
    gate, model, app = Gate(), Listening(), App("tests")

    @app.tool(read_only=True)
    async def look() -> str:
        await gate.passed()
        return "seen"

    await small_agent(world, [turn(call("look"))], context_turns=4)
    first = await say(world, "one", agent="small")
    async with working(world.db, app, backends=Backends({"listening": model})):
        await gate.entered.wait()
        delivery = await post_over_http(http, world, first.session_id, "two")
        assert delivery["job_id"] == str(first.job_id)
        gate.opened.set()
        await until(world, first.job_id, JobStatus.COMPLETED)
    assert users(model.last) == ["one", "two"]
    assert (await said(world, first.session_id))[-1] == ("assistant", "Re: two")


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.proves("D.235")
async def test_what_is_said_while_a_job_waits_for_a_person_is_heard_when_it_goes_on(
    strict: World, http: httpx.AsyncClient, compacts: bool
) -> None:
    await apply_policies(strict.db, strict.admin.actor, ASK)
    shipping, model = Shipping(), Listening()
    before = [turn(call("look")) for _ in range(4)] if compacts else []
    await small_agent(strict, [*before, turn(ship())], context_turns=4 if compacts else 200)
    first = await say(strict, "one", agent="small")
    async with working(strict.db, shipping.app, backends=Backends({"listening": model})):
        (approval,) = await pending_soon(strict, first.job_id)
        await until(strict, first.job_id, JobStatus.WAITING_FOR_APPROVAL)
        for text in ("two", "three"):
            delivery = await post_over_http(http, strict, first.session_id, text)
            assert delivery["job_id"] == str(first.job_id)
        await decide(strict, approval)
        await until(strict, first.job_id, JobStatus.COMPLETED)
    assert shipping.shipped == ["1.0 to production"]
    assert users(model.last)[-2:] == ["two", "three"]
    assert (memory_in(model.last) is not None) == compacts
    assert (await said(strict, first.session_id))[-1] == ("assistant", "Re: three")


@pytest.mark.proves("D.235")
async def test_what_is_said_while_a_job_sleeps_is_heard_when_it_wakes(
    world: World, http: httpx.AsyncClient, admin: asyncpg.Connection
) -> None:
    app, model = App("tests"), Listening()
    backends = Backends({"listening": model})

    @app.tool(on_uncertain="retry_with_key", timeout=3600)
    async def act(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            raise Died
        return "done"

    await small_agent(world, [turn(call("act"))])
    first = await say(world, "one", agent="small")
    await died(world.db, app, backends=backends, time_passes=False)
    async with working(world.db, app, backends=backends):
        await until(world, first.job_id, JobStatus.SLEEPING)
        delivery = await post_over_http(http, world, first.session_id, "two")
        assert delivery["job_id"] == str(first.job_id)
        assert (await job_of(world, first.job_id)).status is JobStatus.SLEEPING
        await admin.execute(
            "update tool_call set dispatch_before = plane_now(), settle_after = plane_now() where job_id = $1",
            first.job_id,
        )
        await admin.execute(
            "update job set wake_at = plane_now(), runnable_at = plane_now() where id = $1", first.job_id
        )
        await until(world, first.job_id, JobStatus.COMPLETED)
    assert users(model.last) == ["one", "two"]
    assert isinstance(model.last[-2], ToolTurn)
    assert (await said(world, first.session_id))[-1] == ("assistant", "Re: two")


@pytest.mark.proves("D.235")
async def test_what_is_said_while_a_window_is_compacted_is_heard_next(world: World, http: httpx.AsyncClient) -> None:
    sessions: list[UUID] = []

    async def before(request: ModelRequest) -> None:
        if request.purpose == "summary":
            await post_over_http(http, world, sessions[0], "and another thing")

    model = Listening(before)
    await small_agent(world, [], context_turns=4)
    async with working(world.db, looking(), backends=Backends({"listening": model})):
        for text in ("one", "two", "three"):
            delivery = await say(world, text, agent="small")
            sessions.append(delivery.session_id)
            await until(world, delivery.job_id, JobStatus.COMPLETED)
    assert len(model.of("summary")) == 1
    assert users(model.last)[-2:] == ["three", "and another thing"]
    (kept,) = await memories_of(world, sessions[0])
    assert kept.message_seq < 5, "the memory ends before what nobody had read yet"
    assert [text for role, text in await said(world, sessions[0]) if role == "user"] == [
        "one", "two", "three", "and another thing",
    ]  # fmt: skip


async def test_a_hold_stops_a_job_between_its_summary_and_its_next_step(world: World) -> None:
    jobs: list[UUID] = []

    async def before(request: ModelRequest) -> None:
        if request.purpose == "summary":
            await steering.pause(world.db, world.admin.actor, jobs[-1], Pause())

    model = Listening(before)
    await small_agent(world, [], context_turns=4)
    async with working(world.db, looking(), backends=Backends({"listening": model})):
        for text in ("one", "two", "three"):
            jobs.append(await tell(world, text))
            await until(world, jobs[-1], JobStatus.COMPLETED, JobStatus.PAUSED)
        assert users(model.last)[-1] == "two"
        await steering.resume(world.db, world.admin.actor, jobs[-1], Resumption())
        job = await until(world, jobs[-1], JobStatus.COMPLETED)
    assert len(model.of("summary")) == 1, "a summary is not made twice"
    assert users(model.last)[-1] == "three"
    assert memory_in(model.last) is not None
    assert len(await memories_of(world, job.session_id)) == 1


async def test_the_checkpoint_says_how_far_the_memory_goes(world: World, admin: asyncpg.Connection) -> None:
    model = Listening()
    agent = await small_agent(world, [turn(call("look", at=n)) for n in range(9)], context_turns=6)
    id = await submit(world, agent)
    async with working(world.db, looking(), backends=Backends({"listening": model})) as worker:
        await until(world, id, JobStatus.COMPLETED)
    row = await admin.fetchrow(
        "select *, whole_checkpoint(checkpoint, memory)::text as blob from job where id = $1", id
    )
    assert row is not None
    opened = open_sealed(
        row["blob"], mac=row["checkpoint_mac"], job_id=id, agent_id=row["agent_id"],
        key=worker._host.vault.checkpoint_key(row["org_id"]),
    )  # fmt: skip
    assert opened.window_step > 0
    assert opened.conversation_summary
    assert worker._host.master_key == KEY


async def test_a_memory_inside_a_checkpoint_is_kept_when_its_job_goes_on(
    world: World, admin: asyncpg.Connection
) -> None:
    """As an earlier release stored it."""
    app = App("tests")

    @app.tool(read_only=True)
    async def look(ctx: ToolContext, at: int) -> str:
        """Looks, and is held twice."""
        if at >= 7:
            await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
        return f"seen {at}"

    id = await submit(world, await small_agent(world, [turn(call("look", at=n)) for n in range(9)], context_turns=6))
    async with working(world.db, app, backends=Backends({"listening": Listening()})):
        await until(world, id, JobStatus.PAUSED)
        assert (
            await admin.execute(
                "update job set checkpoint = whole_checkpoint(checkpoint, memory), memory = null where memory is not null"
            )
            == "UPDATE 1"
        )
        for status in (JobStatus.PAUSED, JobStatus.COMPLETED):
            await steering.resume(world.db, world.admin.actor, id, Resumption())
            await until(world, id, status)


@pytest.mark.parametrize(
    "edit",
    [
        "null",
        "'{}'",
        "'[]'",
        """jsonb_set(memory, '{conversation_summary}', '"forged"')""",
        "memory || '{\"more\": 1}'",
    ],
)
async def test_an_edit_of_a_stored_memory_breaks_the_seal(world: World, admin: asyncpg.Connection, edit: str) -> None:
    agent = await small_agent(world, [turn(call("look", at=n)) for n in range(9)], context_turns=6)
    id = await submit(world, agent)
    async with working(world.db, looking(), backends=Backends({"listening": Listening()})) as worker:
        await until(world, id, JobStatus.COMPLETED)
    read = "select agent_id, checkpoint_mac, whole_checkpoint(checkpoint, memory)::text as blob from job where id = $1"
    key = worker._host.vault.checkpoint_key(world.org_id)

    async def opened() -> None:
        row = await admin.fetchrow(read, id)
        assert row is not None
        open_sealed(row["blob"], mac=row["checkpoint_mac"], job_id=id, agent_id=row["agent_id"], key=key)

    await opened()
    await admin.execute(f"update job set memory = {edit} where id = $1", id)
    with pytest.raises(CheckpointCorrupt):
        await opened()


async def test_a_session_without_a_memory_is_told_whole(world: World) -> None:
    model = Listening()
    await small_agent(world, [])
    async with working(world.db, looking(), backends=Backends({"listening": model})):
        for text in ("one", "two"):
            delivery = await say(world, text, agent="small")
            await until(world, delivery.job_id, JobStatus.COMPLETED)
        answered = await post(world, delivery.session_id, "three")
        await until(world, answered.job_id, JobStatus.COMPLETED)
    assert users(model.last) == ["one", "two", "three"]
    assert memory_in(model.last) is None
    assert await asyncio.wait_for(memories_of(world, delivery.session_id), 10) == []
