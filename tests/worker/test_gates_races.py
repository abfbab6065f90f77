"""Several that write to the gates of one session, and writes that go wrong: nothing is lost, and nothing is charged twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange, ModelConfig
from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk
from cortex_plane.approvals.verbs import settlements
from cortex_plane.gates.verbs import session_gates
from cortex_plane.gates.verbs.atlas_cache import AtlasCache
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import TERMINAL, Hold, Job, JobStatus, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.fields import adapter
from cortex_plane.worker import session_gates as worker_gates
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from tests.crash.test_every_write import Fault, Faulty
from tests.fixtures.approvals import decide, pending
from tests.fixtures.atlases import publish
from tests.fixtures.external_gates import sent
from tests.fixtures.gated import (
    ATLAS,
    DELETE,
    ONBOARDING,
    Desk,
    Listening,
    atlas,
    ban,
    before,
    calls_of,
    delete,
    gate,
    get,
    governed,
    question,
    say,
    state_in,
    traced,
)
from tests.fixtures.people import World
from tests.fixtures.workers import (
    Died,
    Recording,
    actions,
    call,
    died,
    ended,
    make_agent,
    submit,
    turn,
    until,
    whole,
    working,
)
from tests.fixtures.workers import Gate as Turnstile

OTHER = "com.acme.other"
BUDGET = [
    {"policy_id": "few", "type": "budget", "actions": ["ticket.delete"], "max_calls": 3},
    {"policy_id": "all", "type": "allow", "actions": ["*"]},
]


@pytest.mark.proves("D.377")
async def test_jobs_of_one_session_share_what_its_gates_allow(world: World) -> None:
    """Six jobs at once, a budget of three: three run, whoever comes first."""
    desk = Desk()
    agent = await governed(
        world, atlas(policies=BUDGET), turn(delete()), limits={"max_concurrent_jobs": 10}
    )  # fmt: skip
    first = await submit(world, agent, {"text": "0"})
    async with working(world.db, desk.app, concurrency=10):
        session = (await ended(world, first)).session_id
        others = [await submit(world, agent, {"text": str(number)}, session_id=session) for number in range(5)]
        assert {(await ended(world, id, seconds=60)).status for id in others} == {JobStatus.COMPLETED}
    assert desk.deleted == ["delete 1"] * 3
    state = await state_in(world, session)
    assert (state.executed, [window.calls for window in state.spent.values()]) == (3, [3])
    assert await whole(world)


@pytest.mark.proves("D.377")
async def test_one_pass_lets_one_of_two_jobs_through(world: World) -> None:
    """Both wait at the same moment with the same call, and the pass is one."""
    desk = Desk()
    agent = await governed(
        world, atlas(DELETE), turn(delete()), turn(say("delete-confirm", sure="understood")),
        limits={"max_concurrent_jobs": 10},
    )  # fmt: skip
    first = await submit(world, agent)
    async with working(world.db, desk.app):
        session = (await ended(world, first)).session_id
    assert len((await state_in(world, session)).passes) == 1
    both = asyncio.Barrier(2)

    async def meet() -> None:
        # Each has read the state before the other writes.
        async with asyncio.timeout(20):
            await both.wait()

    eager = await agents.update_agent(
        world.db, world.admin.actor, agent.slug,
        AgentChange(model_config=_model(model="eager", script=[turn(delete())])), None,
    )  # fmt: skip
    ids = [await submit(world, eager, {"text": str(number)}, session_id=session) for number in range(2)]

    models = Backends({"eager": _Meeting(meet)})
    async with working(world.db, desk.app, backends=models):
        for id in ids:
            assert (await ended(world, id)).status is JobStatus.COMPLETED
    assert desk.deleted == ["delete 1"]
    assert (await state_in(world, session)).executed == 1


def _model(**config: Any) -> ModelConfig:
    made: ModelConfig = adapter(ModelConfig).validate_python(config)
    return made


class _Meeting(ScriptedModel):
    """Waits for the others before its first answer."""

    def __init__(self, meet: Callable[[], Awaitable[None]]) -> None:
        self._meet = meet

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        if request.turn_index == 0:
            await self._meet()
        async for piece in super().stream(request):
            yield piece


@pytest.mark.proves("D.377")
async def test_gates_of_an_atlas_that_came_meanwhile_hold_from_the_next_job_on(world: World) -> None:
    desk = Desk()
    agent = await governed(world, atlas(), turn(delete()))
    first = await submit(world, agent)
    async with working(world.db, desk.app):
        session = (await ended(world, first)).session_id
        await publish(world, atlas(DELETE, atlas_id="com.acme.late"))
        both = AgentChange(skill_config={**agent.skill_config, "atlases": [ATLAS, "com.acme.late"]})
        await agents.update_agent(world.db, world.admin.actor, agent.slug, both, None)
        job = await ended(world, await submit(world, agent, session_id=session))
    assert desk.deleted == ["delete 1"]
    assert await calls_of(world, job.id) == ["ticket.delete rejected"]


@pytest.mark.proves("D.377", "D.325")
@pytest.mark.parametrize("by", ["answer", "person"])
async def test_a_session_that_is_bound_to_more_while_its_job_goes_on(
    http: httpx.AsyncClient, world: World, by: str
) -> None:
    """Through the API, while the job thinks or waits. What let its call through under the first atlas still does; the gates of
    both hold from its next step on, and the version that it began under stays."""
    desk, thinks = Desk(), Turnstile()
    agree = say("delete-confirm", sure="understood")
    person = gate("delete-confirm", before("*.delete"), audience="human", questions=[question("looked")])
    first = [turn(delete()), turn(agree)] if by == "answer" else []
    mail = call("mail.send", to="ada")
    script = [*first, turn(delete(), mail), turn(say("mail-confirm", sure="understood")), turn(mail)]
    script += [turn(delete())] if by == "answer" else []
    await sent(http, world.admin, "/atlases", 201, manifest=atlas(DELETE if by == "answer" else person))
    agent = await make_agent(world, script, slug="clerk", atlases=[ATLAS], limits={"max_concurrent_jobs": 2})
    job = await sent(http, world.admin, "/jobs", 201, agent="clerk", payload={"text": "go"})
    id, session = UUID(job["id"]), str(job["session_id"])

    async def held(number: int) -> None:
        if by == "answer" and number == len(first) + 1:
            await thinks.passed()

    async with working(world.db, desk.app, backends=Backends({"scripted": Recording(held)}), concurrency=2):
        if by == "answer":
            await asyncio.wait_for(thinks.entered.wait(), 20)
        else:
            await until(world, id, JobStatus.WAITING_FOR_APPROVAL)
            assert desk.done == []
        # A newer version that would forbid all of it, and another atlas that comes with the agent's next job.
        denies = [{"policy_id": "no", "type": "deny", "actions": ["*"]}]
        await sent(http, world.admin, "/atlases", 201, manifest=atlas(version="2.0.0", policies=denies))
        mailing = [
            gate("mail-confirm", before("mail.*")),
            gate("welcome", "session_start", mode="advisory", deny_actions=["user.*"]),
        ]
        await sent(http, world.admin, "/atlases", 201, manifest=atlas(*mailing, atlas_id=OTHER))
        both = {**agent.skill_config, "atlases": [ATLAS, OTHER]}
        bans = {"model": "scripted", "script": [turn(ban()), turn(text="done")]}
        changed = await http.patch(
            "/v1/agents/clerk", json={"skill_config": both, "model_config": bans}, headers=world.admin.headers
        )
        assert changed.status_code == 200, changed.text
        more = {"agent": "clerk", "payload": {"text": "hi"}, "session_id": session}
        other = UUID((await sent(http, world.admin, "/jobs", 201, **more))["id"])
        assert (await ended(world, other)).status is JobStatus.COMPLETED
        assert await calls_of(world, other) == ["user.ban rejected"]
        if by == "person":
            (card,) = await pending(world, id)
            yes = {"decision": "approved", "version": card.version, "input_hash": card.input_hash}
            await sent(http, world.admin, f"/approvals/{card.id}/decide", **yes)
        thinks.opened.set()
        done = await ended(world, id)
    shown = (await http.get(f"/v1/sessions/{session}", headers=world.admin.headers)).json()
    assert [(each["atlas_id"], each["version"]) for each in shown["atlases"]] == [
        (ATLAS, "1.0.0"), (OTHER, "1.0.0"),
    ]  # fmt: skip
    assert (done.status, desk.done) == (JobStatus.COMPLETED, ["delete 1", "mail ada"])
    calls = await calls_of(world, id)
    asked = ["ticket.delete rejected", "plane.answer completed"]
    assert calls == [
        *(asked if by == "answer" else []), "ticket.delete completed", "mail.send rejected",
        "plane.answer completed", "mail.send completed", *(asked[:1] if by == "answer" else []),
    ]  # fmt: skip
    told = Counter(await traced(world, done))
    assert told["triggered welcome"] == told["passed welcome"] == told["triggered mail-confirm"] == 1
    assert told["passed delete-confirm"] == told["passed mail-confirm"] == 1
    assert await whole(world)


@pytest.mark.proves("D.378")
async def test_whoever_dies_before_the_answer_goes_on_at_the_question(world: World) -> None:
    desk, model = Desk(), Listening()
    agent = await governed(world, atlas(ONBOARDING), turn(get()), turn(say("onboarding", agree=True)), turn(get()))
    id = await submit(world, agent)

    async def die(number: int) -> None:
        if number == 2:
            raise Died

    given = await died(world.db, desk.app, backends=Backends({"scripted": Recording(die)}))
    assert [each.attempts for each in (await state_in(world, given.session_id)).asks] == [1]
    async with working(world.db, desk.app, backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    assert "Do you agree?" in model.notices[0]
    assert await traced(world, job) == [
        "triggered onboarding", "blocked onboarding", "blocked onboarding", "response onboarding",
        "passed onboarding",
    ]  # fmt: skip


@pytest.mark.proves("D.378")
async def test_a_call_that_is_sent_again_is_charged_once_and_needs_no_second_pass(world: World) -> None:
    desk, dying = Desk(), [True]

    @desk.app.tool(name="disk.delete", on_uncertain="retry_with_key", timeout=0.5)
    async def wipe() -> str:
        if dying:
            dying.clear()
            raise Died
        desk.done.append("delete disk")
        return "wiped"

    wish = {"tool": "disk.delete", "arguments": {}}
    limits = [
        {"policy_id": "one", "type": "budget", "actions": ["disk.delete"], "max_calls": 1},
        {"policy_id": "all", "type": "allow", "actions": ["*"]},
    ]
    agent = await governed(
        world, atlas(DELETE, policies=limits), turn(wish), turn(say("delete-confirm", sure="understood")), turn(wish)
    )  # fmt: skip
    id = await submit(world, agent)
    await died(world.db, desk.app)
    async with working(world.db, desk.app):
        job = await ended(world, id)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["delete disk"])
    state = await state_in(world, job.session_id)
    assert (state.executed, state.passes, [window.calls for window in state.spent.values()]) == (1, (), [1])
    assert await whole(world)


@pytest.mark.proves("D.378")
async def test_what_a_person_says_did_not_happen_is_sent_with_the_pass_that_it_had(world: World) -> None:
    desk, dying = Desk(), [True]

    @desk.app.tool(name="disk.delete", on_uncertain="ask_human", timeout=0.5)
    async def wipe() -> str:
        if dying:
            dying.clear()
            raise Died
        desk.done.append("delete disk")
        return "wiped"

    wish = {"tool": "disk.delete", "arguments": {}}
    agent = await governed(
        world, atlas(DELETE), turn(wish), turn(say("delete-confirm", sure="understood")), turn(wish)
    )  # fmt: skip
    id = await submit(world, agent)
    await died(world.db, desk.app)
    async with working(world.db, desk.app):
        await until(world, id, JobStatus.PAUSED)
        (asked,) = await steering.list_questions(world.db, world.admin.actor, id)
        await settlements.settle(
            world.db, world.admin.actor, id, asked.call_id, Answer(verdict=Verdict.DID_NOT_HAPPEN)
        )  # fmt: skip
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["delete disk"])
    assert (await state_in(world, job.session_id)).executed == 1


async def _spoiled(admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody wrote to the row of the other atlas, and all processes began anew."""
    await admin.execute(
        "update atlas_version set manifest = replace(manifest, 'Posted', 'Dotted') where atlas_id = $1", OTHER
    )
    fresh = AtlasCache()
    monkeypatch.setattr(session_gates, "book", fresh)
    monkeypatch.setattr(worker_gates, "book", fresh)


async def _restored(admin: asyncpg.Connection) -> None:
    await admin.execute("update atlas_version set manifest = replace(manifest, 'Dotted', 'Posted')")


def _says_what_to_do(job: Job) -> bool:
    said = job.error_message or ""
    return all(word in said for word in (OTHER, "1.0.0", "Restore", "`cortex job resume`"))


@pytest.mark.proves("D.378", "D.332")
async def test_what_cannot_be_read_is_not_gone_around(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    await publish(world, atlas(gate("posted", "session_start", mode="observational"), atlas_id=OTHER))
    agent = await governed(world, atlas(DELETE), turn(get()), atlases=[ATLAS, OTHER])
    id = await submit(world, agent)
    await _spoiled(admin, monkeypatch)
    async with working(world.db, desk.app):
        job = await ended(world, id)
        assert (job.status, job.holds, desk.done) == (JobStatus.PAUSED, [Hold.GATES_UNREADABLE], [])
        assert _says_what_to_do(job)
        await steering.resume(world.db, world.admin.actor, id, Resumption())
        async with asyncio.timeout(20):
            while (await actions(world, job)).count("job_paused") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        job = await ended(world, id)
        assert (job.status, job.holds, desk.done) == (JobStatus.PAUSED, [Hold.GATES_UNREADABLE], [])
        await _restored(admin)
        await steering.resume(world.db, world.admin.actor, id, Resumption())
        job = await until(world, id, *TERMINAL)
    assert (job.status, job.error_message, desk.done) == (JobStatus.COMPLETED, None, ["get 1"])
    assert await whole(world)


@pytest.mark.proves("D.371", "D.332")
async def test_a_persons_yes_outlives_an_atlas_that_cannot_be_read(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    person = gate("four-eyes", before("ticket.delete"), audience="human", questions=[question("looked")])
    await publish(world, atlas(gate("posted", "session_start", mode="observational"), atlas_id=OTHER))
    agent = await governed(world, atlas(person), turn(delete()), atlases=[ATLAS, OTHER])
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        await until(world, id, JobStatus.WAITING_FOR_APPROVAL)
        await _spoiled(admin, monkeypatch)
        (card,) = await pending(world, id)
        await decide(world, card)
        job = await until(world, id, JobStatus.PAUSED, *TERMINAL)
        assert (job.status, job.holds, desk.deleted) == (JobStatus.PAUSED, [Hold.GATES_UNREADABLE], [])
        assert _says_what_to_do(job)
        await _restored(admin)
        await steering.resume(world.db, world.admin.actor, id, Resumption())
        job = await until(world, id, *TERMINAL)
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
    assert await pending(world, id) == []
    assert await traced(world, job) == ["triggered posted", "triggered four-eyes", "passed four-eyes"]


@pytest.mark.proves("D.378", "D.332")
async def test_what_a_person_decided_meanwhile_is_told_to_gates_once_they_can_be_read(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()

    @desk.app.tool(name="disk.wipe", on_uncertain="ask_human", timeout=5)
    async def wipe() -> str:
        raise RuntimeError("the line went dead")

    wrong = gate("wrong", "error_occurred", mode="advisory", deny_actions=["ticket.*"])
    posted = gate("posted", {"type": "action_post", "patterns": ["disk.*"]}, mode="observational")
    await publish(world, atlas(posted, atlas_id=OTHER))
    agent = await governed(world, atlas(wrong), turn({"tool": "disk.wipe", "arguments": {}}), atlases=[ATLAS, OTHER])
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        await until(world, id, JobStatus.PAUSED)
        await _spoiled(admin, monkeypatch)
        (asked,) = await steering.list_questions(world.db, world.admin.actor, id)
        given = Answer(verdict=Verdict.FAIL, note="enough")
        await settlements.settle(world.db, world.admin.actor, id, asked.call_id, given)
        job = await until(world, id, *TERMINAL)
        assert (job.status, await traced(world, job)) == (JobStatus.FAILED, [])
        assert "gates_unread" in await actions(world, job)
        await _restored(admin)
        looks = AgentChange(
            model_config=adapter(ModelConfig).validate_python({"model": "scripted", "script": [turn(get())]})
        )
        agent = await agents.update_agent(world.db, world.admin.actor, agent.slug, looks, None)
        other = await ended(world, await submit(world, agent, session_id=job.session_id))
    assert await calls_of(world, other.id) == ["ticket.get rejected"]
    assert sorted(await traced(world, job)) == [
        "blocked wrong", "passed wrong", "triggered posted", "triggered wrong",
    ]  # fmt: skip
    assert (await state_in(world, job.session_id)).missed == ()


@pytest.mark.proves("D.377")
async def test_a_stewards_limit_of_a_minute_makes_the_job_wait_and_not_fail(
    world: World, admin: asyncpg.Connection
) -> None:
    desk = Desk()
    steward = {"id": "acme", "name": "Acme", "access": {"type": "public", "rate_limit": {"requests_per_minute": 2}}}
    agent = await governed(world, atlas(steward=steward), turn(get("1"), delete("2")), turn(get("3")))
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        job = await until(world, id, JobStatus.SLEEPING, JobStatus.COMPLETED)
        if job.status is JobStatus.SLEEPING:
            assert desk.done == ["get 1", "delete 2"]
            # As if the minute were over.
            await admin.execute("delete from atlas_minute")
            await admin.execute("update job set wake_at = now(), runnable_at = now() where id = $1", id)
            job = await until(world, id, JobStatus.COMPLETED)
    assert desk.done == ["get 1", "delete 2", "get 3"]
    assert (await state_in(world, job.session_id)).executed == 3


@pytest.mark.proves("D.362")
async def test_questions_and_knowledge_take_their_room_from_the_window(world: World) -> None:
    """A conversation that is compacted while a gate asks: both go on."""
    desk, model = Desk(), Listening()
    start = gate("onboarding", "session_start", inject_contexts=["intro"],
                 guidance={"format": "text", "content": "Read. " * 400})  # fmt: skip
    manifest = atlas(start, context_blocks=[{"context_id": "intro", "name": "Intro", "content": "Acme. " * 400}])
    many = [turn(get(str(number)), text="x" * 2000) for number in range(8)]
    agent = await governed(world, manifest, turn(text="no"), turn(say("onboarding", sure="understood")), *many)
    small = AgentChange(model_config=_model(**{**agent.model_config, "context_tokens": 8000, "max_tokens": 500}))
    await agents.update_agent(world.db, world.admin.actor, agent.slug, small, None)
    id = await submit(world, agent)
    async with working(world.db, desk.app, backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert job.status is JobStatus.COMPLETED, job.error_message
    assert any(request.purpose == "summary" for request in model.asked)
    assert not any(request.notice or "Acme." in (request.system_prompt or "") for request in model.asked
                   if request.purpose == "summary")  # fmt: skip
    assert desk.done == [f"get {number}" for number in range(8)]


@pytest.mark.proves("D.378")
@pytest.mark.parametrize("fault", [Fault.NOT_HEARD, Fault.NOT_SENT, Fault.IN_THE_WAY])
async def test_a_write_whose_answer_was_lost_is_made_once(world: World, fault: Fault) -> None:
    """Whichever of its writes it is: what gates remember goes with it, once."""
    script = (turn(delete()), turn(say("delete-confirm", sure="understood")), turn(delete()), turn(delete()))
    agent = await governed(world, atlas(DELETE, policies=BUDGET), *script)
    for number in range(1, 7):
        desk = Desk()
        id = await submit(world, agent)
        db = Faulty(world.db, "advance_job", number, fault)
        async with working(db, desk.app):
            job = await ended(world, id)
        assert (job.status, desk.deleted, db.happened) == (JobStatus.COMPLETED, ["delete 1"], True)
        state = await state_in(world, job.session_id)
        assert (state.executed, state.passes, len(state.open)) == (1, (), 1)
        assert await traced(world, job) == [
            "triggered delete-confirm", "blocked delete-confirm", "response delete-confirm", "passed delete-confirm",
            "triggered delete-confirm", "blocked delete-confirm",
        ]  # fmt: skip
