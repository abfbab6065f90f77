"""Gates around a model: what it must answer, what it is told, and what it cannot get around."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import Agent, AgentChange
from cortex_plane.agents.model.completions import (
    AssistantTurn,
    CallRequest,
    CallResult,
    ModelRequest,
    Response,
    TextChunk,
    ToolTurn,
    Turn,
    UserTurn,
)
from cortex_plane.gates.model.gates import GatedCall, call_name
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus
from cortex_plane.jobs.model.usage import estimated_prompt
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.canonical import canonical
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage, Termination
from cortex_plane.sessions.rules import SILENCE
from cortex_plane.sessions.verbs import events, sessions
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.models.providers import messages_of
from cortex_plane.worker.tools.app import App
from tests.fixtures.atlases import publish
from tests.fixtures.gated import (
    DELETE,
    ONBOARDING,
    Desk,
    Listening,
    ask_for,
    atlas,
    ban,
    before,
    calls_of,
    delete,
    gate,
    get,
    governed,
    ledger,
    question,
    run,
    say,
    state_in,
    traced,
    traces,
)
from tests.fixtures.people import World
from tests.fixtures.workers import (
    Recording,
    actions,
    call,
    ended,
    job_of,
    make_agent,
    names_what_to_do,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)

REJECTED, COMPLETED = "ticket.delete rejected", "ticket.delete completed"
ANSWERED = "plane.answer completed"


@pytest.mark.proves("D.360", "D.367", "S5.27")
async def test_a_gated_call_is_refused_with_its_questions_and_runs_once_they_are_answered(world: World) -> None:
    desk = Desk()
    job = await run(
        world, desk, atlas(DELETE), turn(delete()), turn(say("delete-confirm", sure="understood")), turn(delete())
    )  # fmt: skip
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
    assert await calls_of(world, job.id) == [REJECTED, ANSWERED, COMPLETED]
    refused = (await ledger(world, job.id))[0].error or ""
    assert "delete-confirm" in refused
    assert "I understand." in refused
    assert "plane_answer" in refused
    assert await traced(world, job) == [
        "triggered delete-confirm", "blocked delete-confirm", "response delete-confirm", "passed delete-confirm",
    ]  # fmt: skip
    assert (await state_in(world, job.session_id)).executed == 1
    assert await whole(world)


@pytest.mark.proves("D.361")
async def test_what_is_answered_in_the_same_response_counts_from_the_next_one_on(world: World) -> None:
    """Nor can a question be answered that was not asked yet."""
    desk = Desk()
    yes = say("delete-confirm", sure="understood")
    job = await run(
        world, desk, atlas(DELETE),
        turn(yes, delete(), yes), turn(yes, delete()), turn(delete(), delete(), delete()), turn(text="done"),
    )  # fmt: skip
    assert await calls_of(world, job.id) == [
        ANSWERED, REJECTED, ANSWERED, ANSWERED, REJECTED, COMPLETED, REJECTED, REJECTED,
    ]  # fmt: skip
    told = [made.result for made in await ledger(world, job.id) if made.tool_name == "plane.answer"]
    assert [each["passed"] for each in told] == [False, False, True]
    assert desk.deleted == ["delete 1"]


@pytest.mark.proves("D.361")
async def test_a_pass_is_for_one_call_with_exactly_its_arguments(world: World) -> None:
    desk = Desk()
    job = await run(
        world, desk, atlas(DELETE),
        turn(delete("1")), turn(say("delete-confirm", sure="understood")), turn(delete("2")), turn(delete("1")),
        turn(delete("1")),
    )  # fmt: skip
    assert desk.deleted == ["delete 1"]
    assert [each.split()[1] for each in await calls_of(world, job.id)] == [
        "rejected", "completed", "rejected", "completed", "rejected",
    ]  # fmt: skip


@pytest.mark.proves("D.362")
async def test_questions_of_the_session_are_the_last_thing_the_model_reads_until_it_answers(world: World) -> None:
    desk, model = Desk(), Listening()
    guide = {"format": "system_instruction", "content": "Be careful."}
    start = gate("onboarding", "session_start", questions=[question("agree")], guidance=guide,
                 inject_contexts=["intro"])  # fmt: skip
    manifest = atlas(start, context_blocks=[{"context_id": "intro", "name": "Intro", "content": "We are Acme."}])
    job = await run(
        world, desk, manifest,
        turn(text="Hello!"), turn(get()), turn(say("onboarding", agree=True)), turn(get()),
        backends=Backends({"scripted": model}),
    )  # fmt: skip
    assert job.status is JobStatus.COMPLETED
    asks = ["Do you agree?" in notice for notice in model.notices]
    assert asks == [True, True, True, False, False]
    assert "not accepted" in model.notices[1]
    prompts = [request.system_prompt or "" for request in model.asked]
    assert all(prompt.startswith("Be careful.") for prompt in prompts)
    assert ["We are Acme." in prompt for prompt in prompts] == [False, False, False, True, True]
    assert desk.done == ["get 1"]
    # The text that was not taken stays in the conversation, and the model does not speak twice in a row.
    texts = [turn.text for turn in model.asked[2].turns if isinstance(turn, UserTurn)]
    assert SILENCE in texts
    assert {"plane_answer", "plane_request_context"} < {tool.name for tool in model.asked[0].tools}


@pytest.mark.proves("D.363")
async def test_a_text_does_not_end_a_job_whose_gate_asks_and_out_of_tries_the_job_fails(world: World) -> None:
    desk = Desk()
    job = await run(world, desk, atlas(ONBOARDING, DELETE), turn(text="no."), turn(delete()), turn(text="well."))
    assert job.status is JobStatus.FAILED
    assert names_what_to_do(job, 3)
    assert "com.acme.desk/onboarding" in (job.error_message or "")
    assert desk.done == []
    assert await traced(world, job) == [
        "triggered onboarding", "blocked onboarding", "blocked onboarding", "blocked onboarding",
        "blocked onboarding", "blocked onboarding",
    ]  # fmt: skip
    assert len(await steps_of(world, job.id)) == 3
    assert await whole(world)


@pytest.mark.proves("D.363")
async def test_a_session_whose_gate_is_shut_takes_no_more_work(world: World) -> None:
    desk, no = Desk(), say("onboarding", agree=False)
    agent = await governed(world, atlas(ONBOARDING), turn(no), turn(no), turn(no), turn(text="?"))
    async with working(world.db, desk.app):
        first = await ended(world, await submit(world, agent))
        second = await ended(world, await submit(world, agent, session_id=first.session_id))
    assert [first.status, second.status] == [JobStatus.FAILED, JobStatus.FAILED]
    assert await steps_of(world, second.id) == []
    assert (await state_in(world, first.session_id)).ended is not None


@pytest.mark.proves("D.363")
async def test_answering_another_gate_is_no_answer(world: World) -> None:
    desk, other = Desk(), say("delete-confirm", sure="understood")
    job = await run(world, desk, atlas(ONBOARDING, DELETE), turn(other), turn(other, delete()), turn(other))
    assert job.status is JobStatus.FAILED
    assert (await state_in(world, job.session_id)).passes == ()
    assert desk.done == []


@pytest.mark.proves("D.364")
@pytest.mark.parametrize(
    "forged",
    [
        say("delete-confirm", sure=True),
        say("delete-confirm", sure="not understood"),
        say("delete-confirm", sure="understood", unlock="admin"),
        say("delete-confirm", "00000000", sure="understood"),
        call("plane.answer", gate="delete-confirm", answers={"sure": "understood"}, passed=True),
        call("plane.answer", gate="delete-confirm"),
        call("plane.answer", gate="*", answers={"sure": "understood"}),
        call("plane_answer", gate=["delete-confirm"], answers={"sure": "understood"}),
        call("plane.unlock", gate="delete-confirm"),
        ask_for("delete-confirm"),
    ],
)  # fmt: skip
async def test_a_forged_unlock_opens_nothing(world: World, forged: dict[str, object]) -> None:
    desk = Desk()
    job = await run(world, desk, atlas(DELETE), turn(delete()), turn(forged), turn(delete()))
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, [])
    assert [each for each in await calls_of(world, job.id) if "delete" in each] == [REJECTED, REJECTED]
    assert (await state_in(world, job.session_id)).passes == ()


@pytest.mark.proves("D.364")
async def test_a_gate_of_a_call_that_is_out_of_tries_stays_shut_and_the_job_goes_on(world: World) -> None:
    desk, wrong = Desk(), say("delete-confirm", sure="maybe")
    right = say("delete-confirm", sure="understood")
    job = await run(
        world, desk, atlas(DELETE),
        turn(delete()), turn(wrong), turn(wrong), turn(wrong), turn(right), turn(delete()), turn(get()),
    )  # fmt: skip
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    assert "shut" in ((await ledger(world, job.id))[-2].error or "")


@pytest.mark.proves("D.365")
async def test_two_gates_before_one_call_are_both_answered(world: World) -> None:
    desk = Desk()
    risk = gate("high-risk", {"type": "risk_threshold", "min_tier": "high"},
                questions=[question("why", "text", "Why?", validation={"min_length": 10})])  # fmt: skip
    manifest = atlas(DELETE, risk, actions=[{"action_id": "ticket.delete", "name": "Delete", "risk_tier": "high"}])
    sure, why = say("delete-confirm", sure="understood"), say("high-risk", why="It is a duplicate of 2.")
    job = await run(
        world, desk, manifest, turn(delete()), turn(sure), turn(delete()), turn(why), turn(delete()), turn(delete())
    )  # fmt: skip
    assert desk.deleted == ["delete 1"]
    both = (await ledger(world, job.id))[0].error or ""
    assert "delete-confirm" in both
    assert "high-risk" in both


@pytest.mark.proves("D.365")
async def test_a_capability_stays_open_once_its_gate_is_passed(world: World) -> None:
    desk = Desk()
    admin = gate("admin-gate", {"type": "capability_access", "capability_ids": ["admin"]},
                 unlock_capabilities=["admin"])  # fmt: skip
    manifest = atlas(
        admin, policies=[],
        capabilities=[
            {"capability_id": "basic", "name": "Basic", "actions": ["ticket.get"]},
            {"capability_id": "admin", "name": "Admin", "actions": ["user.ban"]},
        ],
    )  # fmt: skip
    job = await run(
        world, desk, manifest,
        turn(ban(), delete(), get()), turn(say("admin-gate", sure="understood")), turn(ban()), turn(ban("bob")),
    )  # fmt: skip
    assert desk.done == ["get 1", "ban eve", "ban bob"]
    denied = (await ledger(world, job.id))[1]
    assert denied.status == "rejected"
    assert "atlas:default" in (denied.error or "")


@pytest.mark.proves("D.365")
async def test_advice_goes_to_the_prompt_and_observation_to_the_trail_alone(world: World) -> None:
    desk, model = Desk(), Listening()
    told = gate("refunds", {"type": "keyword", "patterns": ["refund"]}, mode="advisory",
                guidance={"format": "text", "content": "No refunds after 30 days."})  # fmt: skip
    seen = gate("after-get", {"type": "action_post", "patterns": ["ticket.get"]}, mode="observational")
    wrong = gate("trouble", "error_occurred", mode="advisory", guidance={"content": "Stay calm.", "format": "text"})
    job = await run(
        world, desk, atlas(told, seen, wrong), turn(get()), turn(call("mail.send", to="nobody")),
        payload={"text": "I want a REFUND"}, backends=Backends({"scripted": model}),
    )  # fmt: skip
    assert job.status is JobStatus.COMPLETED
    prompts = [request.system_prompt or "" for request in model.asked]
    assert ["30 days" in prompt for prompt in prompts] == [True, True, True]
    assert ["Stay calm" in prompt for prompt in prompts] == [False, False, True]
    assert await traced(world, job) == [
        "triggered refunds", "passed refunds", "triggered after-get", "triggered trouble", "passed trouble",
    ]  # fmt: skip
    assert all(notice == "" for notice in model.notices)


@pytest.mark.proves("D.366")
async def test_limits_are_used_up_by_running_and_not_by_asking(world: World) -> None:
    desk = Desk()
    limits = [
        {"policy_id": "few", "type": "budget", "actions": ["ticket.delete"], "max_calls": 2},
        {"policy_id": "all", "type": "allow", "actions": ["*"]},
    ]
    yes = say("delete-confirm", sure="understood")
    manifest = atlas(DELETE, policies=limits)
    job = await run(
        world, desk, manifest,
        turn(delete("1")), turn(delete("1")), turn(delete("2")), turn(yes), turn(delete("1")),
        turn(say("delete-confirm", "", sure="understood")), turn(text="well"),
    )  # fmt: skip
    # Both wait, so `yes` must say which: nothing ran, and nothing is used up.
    assert desk.deleted == []
    assert (await state_in(world, job.session_id)).spent == {}


@pytest.mark.proves("D.366")
async def test_calls_of_one_response_share_a_budget(world: World) -> None:
    desk = Desk()
    limits = [
        {"policy_id": "few", "type": "budget", "actions": ["ticket.*"], "max_calls": 2},
        {"policy_id": "all", "type": "allow", "actions": ["*"]},
    ]
    job = await run(
        world, desk, atlas(policies=limits), turn(get("1"), delete("2"), delete("3"), get("4")), turn(get("5"))
    )  # fmt: skip
    assert sorted(desk.done) == ["delete 2", "get 1"]
    spent = (await state_in(world, job.session_id)).spent
    assert [window.calls for window in spent.values()] == [2]


@pytest.mark.proves("D.362")
async def test_an_ungoverned_job_is_told_and_offered_nothing_of_gates(world: World) -> None:
    desk, model = Desk(), Listening()
    agent = await make_agent(world, [turn(say("x", sure="understood")), turn(delete())], slug="free")
    id = await submit(world, agent)
    async with working(world.db, desk.app, backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert desk.deleted == ["delete 1"]
    assert not any("plane" in tool.name for request in model.asked for tool in request.tools)
    assert (await calls_of(world, id))[0] == "plane_answer rejected"
    assert not [each for each in await actions(world, job) if each.startswith("checkpoint_")]


@pytest.mark.proves("D.368")
async def test_what_stewards_wrote_down_comes_when_the_agent_asks_for_it(world: World) -> None:
    desk, model = Desk(), Listening()
    manifest = atlas(
        context_blocks=[{"context_id": "refunds", "name": "Refunds", "content": "30 days.", "inject_mode": "on_demand"}]
    )
    job = await run(
        world, desk, manifest, turn(ask_for("weather")), turn(ask_for("refunds")),
        backends=Backends({"scripted": model}),
    )  # fmt: skip
    told = [made.result for made in await ledger(world, job.id)]
    assert [each["found"] for each in told] == [False, True]
    assert ["30 days." in (request.system_prompt or "") for request in model.asked] == [False, False, True]


@pytest.mark.proves("D.369")
async def test_gates_of_the_end_look_on_when_a_session_is_terminated(world: World) -> None:
    desk = Desk()
    last = gate("goodbye", "session_end", mode="observational")
    job = await run(world, desk, atlas(last), turn(get()))
    await session_lifecycle.terminate(world.db, world.admin.actor, job.session_id, Termination())
    await session_lifecycle.terminate(world.db, world.admin.actor, job.session_id, Termination())
    assert await traced(world, job) == ["triggered goodbye"]
    assert await whole(world)


@pytest.mark.proves("D.370")
async def test_what_must_be_traced_at_once_is_durable_before_the_model_is_asked(world: World) -> None:
    desk, seen = Desk(), list[list[str]]()
    start = gate("onboarding", "session_start", mode="observational", force_sync_trace=True)
    agent = await governed(world, atlas(start), turn(get()))
    id = await submit(world, agent)

    class Looking(Listening):
        async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            entries = await audit.list_entries(
                world.db, world.admin.actor, (await job_of(world, id)).session_id, 0, 100
            )
            seen.append([entry.action for entry in entries if entry.action.startswith("checkpoint_")])
            async for piece in super().stream(request):
                yield piece

    async with working(world.db, desk.app, backends=Backends({"scripted": Looking()})):
        job = await ended(world, id)
    assert job.status is JobStatus.COMPLETED
    assert seen == [["checkpoint_triggered"], ["checkpoint_triggered"]]


@pytest.mark.proves("D.370")
@pytest.mark.parametrize("read_only", [True, False])
async def test_what_must_be_traced_at_once_is_durable_before_the_call_is_sent(world: World, read_only: bool) -> None:
    desk, seen, ids = Desk(), list[list[str]](), list[UUID]()

    async def look() -> str:
        found = await job_of(world, ids[0])
        entries = await audit.list_entries(world.db, world.admin.actor, found.session_id, 0, 100)
        seen.append([entry.action for entry in entries if entry.action.startswith("checkpoint_")])
        return "seen"

    desk.app.tool(name="disk.look", read_only=read_only, on_uncertain=None if read_only else "fail")(look)
    watched = gate("watched", before("disk.*"), mode="observational", force_sync_trace=True)
    agent = await governed(world, atlas(watched), turn(call("disk.look")))
    ids.append(await submit(world, agent))
    async with working(world.db, desk.app):
        job = await ended(world, ids[0])
    assert job.status is JobStatus.COMPLETED
    assert seen == [["checkpoint_triggered"]]


@pytest.mark.proves("D.360")
async def test_events_of_gates_have_the_names_and_payloads_of_the_trail(world: World) -> None:
    desk = Desk()
    job = await run(world, desk, atlas(DELETE), turn(delete()), turn(say("delete-confirm", sure="understood")))
    told = await events.of_session(world.db, world.admin.actor, job.session_id, 0)
    mine = [(each.type, each.data) for each in told.events if each.type.startswith("checkpoint_")]
    chain = [
        (f"checkpoint_{kind}", {k: v for k, v in data.items() if k != "job"}) for kind, data in await traces(world, job)
    ]
    assert mine == chain


@pytest.mark.proves("D.361")
async def test_patterns_of_another_action_stop_nothing(world: World) -> None:
    desk = Desk()
    job = await run(world, desk, atlas(gate("bans", before("user.*"))), turn(delete()))
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
    assert await traced(world, job) == []


@pytest.mark.proves("D.360", "D.361")
async def test_a_call_that_only_reads_is_stopped_like_any_other(world: World) -> None:
    desk, yes = Desk(), say("reads", sure="understood")
    job = await run(
        world, desk, atlas(gate("reads", before("ticket.get"))),
        turn(get()), turn(yes), turn(get("2")), turn(get()), turn(get()),
    )  # fmt: skip
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    assert [each for each in await calls_of(world, job.id) if "get" in each] == [
        f"ticket.get {how}" for how in ("rejected", "rejected", "completed", "rejected")
    ]


@pytest.mark.proves("D.352")
@pytest.mark.parametrize(("end", "heard"), [("!", False), ("b", True)])
async def test_an_expression_that_would_take_for_ever_elsewhere_reads_a_long_task(
    world: World, end: str, heard: bool
) -> None:
    """A backtracking engine needs 2**100_000 steps: that this ends is the proof."""
    trigger = {"type": "keyword", "match_mode": "regex", "patterns": ["(a+)+b"]}
    hears = gate("heard", trigger, mode="advisory", guidance={"format": "text", "content": "Heard."})
    job = await run(world, Desk(), atlas(hears), turn(text="done"), payload={"text": "a" * 100_000 + end})
    assert job.status is JobStatus.COMPLETED
    assert ("triggered heard" in await traced(world, job)) is heard


class Names:
    """Tools whose names have much in common."""

    EVERY = ("ticket.delete", "ticket.delete_all", "ticket.delete.now", "ticket.undelete", "my.ticket.delete", "delete")

    def __init__(self) -> None:
        self.done: list[str] = []
        self.app = App("tests")
        for name in self.EVERY:
            self._add(name)

    def _add(self, name: str) -> None:
        async def act() -> str:
            self.done.append(name)
            return "done"

        self.app.tool(name=name, on_uncertain="fail", timeout=5)(act)


@pytest.mark.proves("D.361", "S5.2")
@pytest.mark.parametrize(
    ("pattern", "stops", "how"),
    [
        *((name, {name}, how) for name in ("ticket.delete", "delete") for how in ("gate", "policy", "settings")),
        ("only ticket.delete", set(Names.EVERY) - {"ticket.delete"}, "settings"),
        *(
            (pattern, stops, how)
            for how in ("gate", "policy")
            for pattern, stops in (
                ("ticket.*", {"ticket.delete", "ticket.delete_all", "ticket.delete.now", "ticket.undelete"}),
                ("*.delete", {"ticket.delete", "my.ticket.delete"}),
                ("ticket.delete*", {"ticket.delete", "ticket.delete_all", "ticket.delete.now"}),
            )
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_names_of_tools_are_taken_exactly(world: World, pattern: str, stops: set[str], how: str) -> None:
    tools, model = Names(), Listening()
    more: dict[str, Any] = {"tools": [name for name in Names.EVERY if name not in stops]} if how == "settings" else {}
    manifest = atlas(gate("exact", before(pattern))) if how == "gate" else atlas()
    if how == "policy":
        deny = {"policy_id": "no", "type": "deny", "actions": [pattern]}
        manifest = atlas(policies=[deny, {"policy_id": "all", "type": "allow", "actions": ["*"]}])
    agent = await governed(world, manifest, turn(*(call(name) for name in Names.EVERY)), **more)
    id = await submit(world, agent)
    async with working(world.db, tools.app, backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert job.status is JobStatus.COMPLETED
    assert sorted(tools.done) == sorted(set(Names.EVERY) - stops)
    refused = {each.tool_name for each in await ledger(world, id) if each.status == CallStatus.REJECTED}
    assert {name.replace(".", "_") for name in refused} == {name.replace(".", "_") for name in stops}
    offered = {tool.name for tool in model.asked[0].tools}
    hidden = stops if how == "settings" else set()
    assert offered >= {name.replace(".", "_") for name in Names.EVERY if name not in hidden}
    assert not offered & {name.replace(".", "_") for name in hidden}


@pytest.mark.proves("D.361", "D.364")
async def test_a_name_that_only_looks_like_a_tool_is_none(world: World) -> None:
    desk = Desk()
    names = [
        "Ticket_Delete", "TICKET.DELETE", "ticket-delete", "ticket/delete", "ticket__delete", "ticket_delete_",
        "tick\u0435t_delete", "\uff54icket_delete", "ticket\u200b_delete", "Plane_Answer",
        "plane_answer_", "plane.answer.", "pl\u0430ne_answer",
    ]  # fmt: skip
    odd = [{**delete(), "tool": name} for name in names[:9]] + [
        {**say("delete-confirm", sure="understood"), "tool": name} for name in names[9:]
    ]
    job = await run(world, desk, atlas(DELETE), turn(delete()), turn(*odd), turn(delete()), turn(text="done"))
    assert (job.status, desk.done) == (JobStatus.COMPLETED, [])
    assert {each.split()[-1] for each in await calls_of(world, job.id)} == {"rejected"}
    assert (await state_in(world, job.session_id)).passes == ()
    assert await whole(world)


@pytest.mark.proves("D.363", "D.365")
async def test_what_people_say_is_looked_at_once_also_while_the_agent_speaks(world: World) -> None:
    """In a conversation of two jobs: the first message says nothing of it, one that comes meanwhile does, and the second job
    does not hear the first one's words again."""
    desk = Desk()
    money = gate("refunds", {"type": "keyword", "patterns": ["refund"]}, questions=[question("policy")])
    agent = await governed(world, atlas(money), turn(get("1")), turn(get("2")), turn(say("refunds", policy=True)))
    first = await post(world, agent, "hello")

    async def meanwhile(number: int) -> None:
        if number == 1:
            await post(world, agent, "I want a refund")

    model = Recording(meanwhile)
    async with working(world.db, desk.app, backends=Backends({"scripted": model})):
        job = await until(world, first.job_id, JobStatus.COMPLETED)
        assert desk.done == ["get 1"]
        second = await post(world, agent, "thank you")
        assert second.session_id == job.session_id
        await until(world, second.job_id, JobStatus.COMPLETED)
    # The second job follows the same script: nothing asks any more.
    assert desk.done == ["get 1", "get 1", "get 2"]
    assert await traced(world, job) == [
        "triggered refunds", "blocked refunds", "blocked refunds", "response refunds", "passed refunds",
    ]  # fmt: skip
    assert (await state_in(world, job.session_id)).heard >= 3


async def post(world: World, agent: Agent, text: str) -> IngestedMessage:
    made = InboundMessage(external_user_id="u-1", agent=agent.slug, text=text)
    return await sessions.ingest_message(world.db, world.service.actor, world.connection.id, made)


@pytest.mark.proves("D.364", "D.345")
async def test_other_arguments_give_no_more_tries_for_the_gate_of_a_capability(world: World) -> None:
    """Many calls at once, each with its own question: all of them together are answered as often as one would be."""
    desk = Desk()
    pin = gate(
        "pin", {"type": "capability_access", "capability_ids": ["adm"]}, max_attempts=3,
        questions=[question("pin", "text", "PIN?", validation={"pattern": "^0007$"})],
    )  # fmt: skip
    numbers = [str(number) for number in range(10)]
    hashes = [hashlib.sha256(canonical({"id": number})).hexdigest() for number in numbers]
    named = [call_name(GatedCall(action="ticket.delete", arguments={}, input_hash=each)) for each in hashes]
    job = await run(
        world, desk,
        atlas(pin, capabilities=[{"capability_id": "adm", "name": "A", "actions": ["ticket.delete"]}]),
        turn(*(delete(number) for number in numbers)),
        turn(*(say("pin", name, pin=f"000{number}") for name, number in zip(named, numbers, strict=True))),
        turn(delete("7"), delete("new")),
    )  # fmt: skip
    assert (job.status, desk.done) == (JobStatus.COMPLETED, [])
    responses = [each for each in await traced(world, job) if each.startswith(("response", "passed"))]
    assert responses == ["response pin"] * 3


MONEY = gate("refunds", {"type": "keyword", "patterns": ["refund"]}, questions=[question("policy")])


@pytest.mark.proves("D.363", "D.365")
async def test_what_was_said_to_a_job_that_never_ran_is_heard_by_the_next_one(world: World) -> None:
    """The model reads it, so gates hear it: the session was bound before it was said."""
    desk = Desk()
    agent = await governed(world, atlas(MONEY), turn(get("1")), turn(say("refunds", policy=True)))
    first = await post(world, agent, "I want a refund")
    await steering.cancel(world.db, world.admin.actor, first.job_id, Cancellation())
    second = await post(world, agent, "please do what I said before")
    assert second.session_id == first.session_id
    async with working(world.db, desk.app):
        job = await until(world, second.job_id, JobStatus.COMPLETED)
    assert (await traced(world, job))[0] == "triggered refunds"
    assert desk.done == [], "it asked before anything else"


@pytest.mark.proves("D.365")
@pytest.mark.parametrize("task_first", [False, True])
async def test_what_was_said_before_anybody_governed_the_session_is_history(world: World, task_first: bool) -> None:
    """Also where the first job under gates is a task, which hears no messages."""
    desk = Desk()
    agent = await make_agent(world, [turn(get("1"))], slug="clerk")
    old = await post(world, agent, "I want a refund")
    await steering.cancel(world.db, world.admin.actor, old.job_id, Cancellation())
    made = await publish(world, atlas(MONEY))
    skills = {**agent.skill_config, "atlases": [made.version.atlas_id]}
    await agents.update_agent(world.db, world.admin.actor, agent.slug, AgentChange(skill_config=skills), None)
    async with working(world.db, desk.app):
        if task_first:
            await ended(world, await submit(world, agent, session_id=old.session_id))
        desk.done.clear()
        new = await post(world, agent, "hello again")
        job = await until(world, new.job_id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (new.session_id, desk.done, await traced(world, job)) == (old.session_id, ["get 1"], [])


@pytest.mark.proves("D.365")
async def test_what_a_job_was_given_is_heard_where_its_session_is_bound_before_it_runs(world: World) -> None:
    """Somebody else's task brings the atlas, after the message and before any worker read it."""
    desk = Desk()
    agent = await make_agent(world, [turn(get("1")), turn(say("refunds", policy=True))], slug="clerk")
    said = await post(world, agent, "I want a refund")
    made = await publish(world, atlas(MONEY))
    task = await submit(world, agent, session_id=said.session_id, atlases=[made.version.atlas_id])
    await steering.cancel(world.db, world.admin.actor, task, Cancellation())
    async with working(world.db, desk.app):
        job = await until(world, said.job_id, JobStatus.COMPLETED)
    assert ((await traced(world, job))[0], desk.done) == ("triggered refunds", [])


@pytest.mark.proves("D.362")
@pytest.mark.parametrize("last", ["tool", "user", "assistant"])
def test_providers_get_the_questions_as_the_last_words_of_a_person(last: str) -> None:
    asked = CallRequest(id="c1", name="ticket_get", arguments={"id": "1"})
    turns: list[Turn] = [UserTurn("go"), AssistantTurn(text=None, calls=(asked,))]
    turns.append(ToolTurn((CallResult(call_id="c1", name="ticket_get", content="{}"),)))
    if last != "tool":
        turns.append(UserTurn("well?") if last == "user" else AssistantTurn(text="hello"))
    request = ModelRequest(
        model="x", system_prompt=None, turns=turns, tools=(), temperature=None, max_tokens=None, settings={},
        turn_index=1, notice="Do you agree?",
    )  # fmt: skip
    sent = messages_of(request, marks_errors=True)
    assert sent[-1].kind == "request"
    assert [part.content for part in sent[-1].parts] == ["Do you agree?"]  # type: ignore[union-attr]
    assert len(sent) == len(turns) + 1
    assert estimated_prompt(request) > estimated_prompt(replace(request, notice=""))


@pytest.mark.proves("S5.260")
async def test_a_call_runs_only_where_the_answer_equals_its_argument(world: World) -> None:
    desk = Desk()
    tied = question("ticket", "text", "Which ticket did the customer name?", validation={"equals_argument": "id"})
    manifest = atlas(gate("which", before("ticket.delete"), questions=[tied]))
    job = await run(
        world, desk, manifest,
        turn(delete("1")), turn(say("which", ticket="2")), turn(delete("1")), turn(delete("2")),
        turn(say("which", call_name(gated(delete("2"))), ticket="2")), turn(delete("1")), turn(delete("2")),
    )  # fmt: skip
    assert desk.deleted == ["delete 2"]
    made = await ledger(world, job.id)
    assert "equal to the argument `id` of the call" in (made[0].error or "")
    assert [one.status for one in made if one.tool_name == "ticket.delete"] == ["rejected"] * 4 + ["completed"]


def gated(made: dict[str, Any]) -> GatedCall:
    input_hash = hashlib.sha256(canonical(made["arguments"])).hexdigest()
    return GatedCall(action=made["tool"], arguments=made["arguments"], input_hash=input_hash)
