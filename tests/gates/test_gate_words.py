"""What people and models are told about gates: reasons and answers on cards, what a valid answer is, what may be asked for,
and which gates still stand before a call."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.gates.model.atlases import ResponseType, TriggerType
from cortex_plane.gates.rules.prompts import MAX_SCHEMA, prompt_parts
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.text import REDACTED
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.models.backends import Backends
from tests.channels.behaviour import link
from tests.channels.postbox import connect
from tests.cli.test_cli_absences import live
from tests.cli.test_cli_jobs import Live
from tests.dashboard.test_dashboard_approvals import shown
from tests.fixtures import gates
from tests.fixtures.approvals import pending
from tests.fixtures.external_gates import AGREE, DESK, desk, opened, permissions, sent, told
from tests.fixtures.external_gates import governed as governed_elsewhere
from tests.fixtures.gated import (
    DELETE,
    Desk,
    Listening,
    ask_for,
    atlas,
    before,
    delete,
    gate,
    governed,
    ledger,
    question,
    run,
    say,
)
from tests.fixtures.gates import Life
from tests.fixtures.mail_servers import only_mail
from tests.fixtures.people import World, apply_policies
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import submit, turn, until, working

__all__ = ["live"]

WHY = "It is a duplicate of ticket 2, \u202ewhich stays."
LONG = "x" * 5_000
REASON = "Deleting a ticket needs a second person."
JUSTIFY = gate(
    "justify", before("ticket.delete"), questions=[question("why", "text", "Why?", validation={"min_length": 10})]
)
PURPOSE = gate("purpose", "session_start", questions=[question("goal", "text", "What are you here for?")])
ADMIN = gate(
    "admin-gate", {"type": "capability_access", "capability_ids": ["admin"]}, unlock_capabilities=["admin"],
    questions=[question("token", "text", "Who sent you?")],
)  # fmt: skip
LIMITED = question("goal", "text", "What for?", validation={"min_length": 3, "must_contain": ["order"]})
APPROVERS = """
policies:
  - {name: ask, target: "ticket.delete", effect: requires_approval, approvers: {roles: [approver]}}
"""
OTHER = gate("other-gate", {"type": "capability_access", "capability_ids": ["other"]})
ASKS = [
    {"policy_id": "second-person", "type": "requires_approval", "actions": ["ticket.delete"], "reason": REASON},
    {"policy_id": "all", "type": "allow", "actions": ["*"]},
]  # fmt: skip
CAPABILITIES = [
    {"capability_id": "admin", "actions": ["ticket.delete"]},
    {"capability_id": "other", "actions": ["user.ban"]},
]


async def _asked(world: World, desk: Desk, manifest: str, *script: dict[str, Any]) -> Approval:
    agent = await governed(world, manifest, *script)
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        job = await until(world, id, JobStatus.WAITING_FOR_APPROVAL, JobStatus.FAILED)
    assert job.status is JobStatus.WAITING_FOR_APPROVAL, job.error_message
    (card,) = await pending(world, id)
    return card


async def _deletion(world: World, why: str = WHY) -> Approval:
    actions = [{"action_id": "ticket.delete", "risk_tier": "high"}]
    manifest = atlas(PURPOSE, JUSTIFY, ADMIN, OTHER, policies=ASKS, capabilities=CAPABILITIES, actions=actions)
    return await _asked(
        world, Desk(), manifest, turn(say("purpose", goal="I tidy up.")), turn(delete()),
        turn(say("justify", why=why), say("admin-gate", token="Ada did.")), turn(delete()),
    )  # fmt: skip


@pytest.mark.proves("S5.230")
async def test_a_card_says_why_its_policy_asks_and_what_the_agent_answered(
    http: httpx.AsyncClient, world: World
) -> None:
    card = await _deletion(world)
    answer = await http.get(f"/v1/approvals/{card.id}", headers=world.admin.headers)
    approval = answer.json()["approval"]
    assert approval["rule_reason"] == REASON
    # Not of the gate before another capability.
    assert [(each["gate"].split("/")[1], each["question_id"], each["answer"]) for each in approval["gate_answers"]] == [
        ("purpose", "goal", "I tidy up."), ("justify", "why", WHY), ("admin-gate", "token", "Ada did."),
    ]  # fmt: skip
    visitor = await Visitor.log_in(http, world)
    page, confirmation = await visitor.get(f"/approvals/{card.id}"), await visitor.decide(card.id, "approved")
    for text in (REASON, "What are you here for?", "I tidy up.", "which stays.", "U+202E"):
        assert text in shown(page), text
        assert text in shown(confirmation), text


@pytest.mark.proves("S5.230")
async def test_mails_say_the_same_and_hide_what_the_org_hides(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    bea = await world.person(Role.APPROVER, name="Bea")
    await link(admin, world, await connect(world, "email", "post"), bea, "bea@example.com")
    await apply_policies(world.db, world.admin.actor, APPROVERS)
    await _deletion(world)
    mail = await only_mail(world.db)
    for text in (REASON, "What are you here for?", "I tidy up.", "which stays."):
        assert text in mail.text, text
        assert text in mail.html, text
    assert "Ada did." not in mail.text, "an answer to `token` is redacted"
    assert REDACTED in mail.text
    # So does the page behind its link.
    link_page = shown(
        await http.get(next(url for url in mail.urls if "sig=" in url).removeprefix("https://plane.example"))
    )
    assert [text in link_page for text in (REASON, "I tidy up.", "Ada did.")] == [True, True, False]


@pytest.mark.proves("S5.230")
def test_the_terminal_says_the_same(live: Live) -> None:
    card = live.begin(_deletion(live.world))()
    text = " ".join(live.shell.run("approval", "show", str(card.id)).stdout.split())
    assert f"reason {REASON}" in text
    assert "com.acme.desk/justify: Why? → It is a duplicate of ticket 2" in text
    assert "\u202e" not in text


@pytest.mark.proves("S5.230")
async def test_a_card_says_that_a_long_answer_is_cut(http: httpx.AsyncClient, world: World) -> None:
    card = await _deletion(world, LONG)
    answer = await http.get(f"/v1/approvals/{card.id}", headers=world.admin.headers)
    (kept,) = [each for each in answer.json()["approval"]["gate_answers"] if each["question_id"] == "why"]
    assert (kept["answer"], kept["cut"]) == (LONG[:4_000], 5_000)
    visitor = await Visitor.log_in(http, world)
    assert "… (5000 characters; the job’s trail has all of them)" in shown(await visitor.get(f"/approvals/{card.id}"))


@pytest.mark.proves("S5.230")
def test_so_does_the_terminal(live: Live) -> None:
    card = live.begin(_deletion(live.world, LONG))()
    assert "x… (5000 characters)" in " ".join(live.shell.run("approval", "show", str(card.id)).stdout.split())


@pytest.mark.proves("S5.231", "S5.235")
async def test_a_model_reads_what_a_valid_answer_is_and_what_it_may_ask_for(world: World) -> None:
    model = Listening()
    schema = {"type": "object", "required": ["order"]}
    why = question(
        "why", "text", "Why?",
        validation={"min_length": 20, "max_length": 500, "pattern": "^[A-Z]", "must_contain": ["reason"],
                    "must_not_contain": ["hack"]},
    )  # fmt: skip
    form = question("form", "json", "Which order?", schema=schema, required=False)
    size = question("size", "number", "How many?", validation={"minimum": 1, "maximum": 2.5})
    manifest = atlas(
        gate("start", "session_start", questions=[why, form, size]),
        gate("help", {"type": "explicit_request", "patterns": ["billing.*"]}, mode="advisory",
             guidance={"content": "Ask Bea."}),
        context_blocks=[
            {"context_id": "refunds", "name": "Refunds", "content": "30 days."},
            {"context_id": "returns", "name": "Returns", "content": "By mail."},
            {"context_id": "hours", "name": "Hours", "content": "Nine to five.", "inject_mode": "always"},
        ],
    )  # fmt: skip
    text = "My reason is that they asked."
    await run(
        world, Desk(), manifest, turn(say("start", why=text, form={"order": 7}, size=2)),
        turn(ask_for(["refunds", "returns", "weather"])), turn(), backends=Backends({"scripted": model}),
    )  # fmt: skip
    notice = model.notices[0]
    assert (
        "why: Why? [a text, at least 20 characters, at most 500 characters, with a match of the regular expression ^[A-Z],"
        " it must contain `reason`, it must not contain `hack`]"
    ) in notice
    assert (
        'form: Which order? [JSON that fits this JSON Schema: {"required":["order"],"type":"object"}, optional]'
        in notice
    )
    assert "size: How many? [a number, at least 1, at most 2.5]" in notice
    prompts = [request.system_prompt or "" for request in model.asked]
    for name in ("- refunds (Refunds)", "- returns (Returns)", "- billing.* (Help)"):
        assert name in prompts[1], name
    assert "hours" not in prompts[1], "it was told at the start"
    # Several at once: what was told is not offered again.
    assert ["30 days." in prompts[2], "By mail." in prompts[2]] == [True, True]
    assert "- refunds" not in prompts[2]
    assert "- billing.*" in prompts[2]


@pytest.mark.proves("S5.231")
def test_a_schema_that_is_too_large_is_named_and_not_shown() -> None:
    schema = {"type": "object", "description": "x" * MAX_SCHEMA}
    life = Life(
        gates.atlas(
            gates.gate("g", TriggerType.SESSION_START, questions=(gates.ask("q", ResponseType.JSON, schema=schema),))
        )
    )
    asked = prompt_parts(life.atlases, life.state).questions
    assert "a schema too large to show" in asked
    assert len(asked) < 1000


@pytest.mark.proves("S5.231", "S5.235")
async def test_programs_read_the_limits_and_names_too(http: httpx.AsyncClient, world: World) -> None:
    await governed_elsewhere(world, desk(gates=[PURPOSE | {"questions": [LIMITED]}]))
    session = await opened(http, world.service)
    told = await permissions(http, world.service, session)
    (asked,) = told["waiting"][0]["questions"]
    assert asked["validation"] == {"min_length": 3, "must_contain": ["order"]}
    assert told["on_demand"] == {"intro": "Intro"}
    resolution = await sent(
        http, world.service, f"/sessions/{session}/answers", gate="purpose", answers={"goal": "an order"}
    )
    assert resolution["passed"]
    resolution = await sent(
        http, world.service, f"/sessions/{session}/resolve", 201, request=["intro", "weather"], action="ticket.get"
    )
    assert [each["id"] for each in resolution["contexts"]] == [f"{DESK}/intro"]
    assert (await permissions(http, world.service, session))["on_demand"] == {}


@pytest.mark.proves("S5.232")
async def test_an_answer_says_how_many_gates_still_stand_before_the_call(world: World) -> None:
    desk = Desk()
    risk = gate("risk", {"type": "risk_threshold", "min_tier": "medium"})
    job = await run(
        world, desk, atlas(DELETE, JUSTIFY, risk), turn(delete()), turn(say("risk", sure="understood")),
        turn(say("justify", why=WHY), say("delete-confirm", sure="understood")), turn(delete()),
    )  # fmt: skip
    replies = [call.result["next"] for call in await ledger(world, job.id) if call.tool_name == "plane.answer"]
    assert replies == [
        (
            "2 more gates stand before `ticket.delete`: `delete-confirm`, `justify`. Answer first, then call it again with"
            " the same arguments."
        ),
        "1 more gate stands before `ticket.delete`: `delete-confirm`. Answer first, then call it again with the same arguments.",
        "Now call `ticket.delete` again with the same arguments.",
    ]
    assert desk.deleted == ["delete 1"]


@pytest.mark.proves("S5.233")
async def test_a_receipt_says_what_an_answer_opened(http: httpx.AsyncClient, world: World) -> None:
    await governed_elsewhere(world)
    session = await opened(http, world.service)
    receipt = await sent(http, world.service, f"/sessions/{session}/answers", **AGREE)
    assert receipt["opened_capabilities"] == [f"{DESK}/basic"]
    assert receipt["opened_actions"] == ["ticket.get", "ticket.list"]
    again = await sent(http, world.service, f"/sessions/{session}/answers", **AGREE)
    assert (again["passed"], again["opened_capabilities"]) == (True, [])


@pytest.mark.proves("S5.233")
async def test_a_model_reads_what_its_answer_opened(world: World) -> None:
    opens = gate("opens", "session_start", allow_actions=["user.*"], unlock_capabilities=["admin"])
    job = await run(
        world, Desk(), atlas(opens, policies=[], capabilities=CAPABILITIES), turn(say("opens", sure="understood"))
    )
    (call,) = await ledger(world, job.id)
    assert call.result["opened_capabilities"] == [f"{DESK}/admin"]
    assert call.result["opened_actions"] == ["ticket.delete", "user.*"]


@pytest.mark.proves("S5.233")
async def test_what_was_open_before_is_not_opened_by_an_answer(world: World) -> None:
    first, second = (
        gate(name, "session_start", unlock_capabilities=[name], questions=[question("why", "text", "Why?")])
        for name in ("admin", "other")
    )
    manifest = atlas(first, second, policies=[], capabilities=CAPABILITIES)
    job = await run(world, Desk(), manifest, turn(say("admin", why="I must.")), turn(say("other", why="I must.")))
    answers = [call.result["opened_capabilities"] for call in await ledger(world, job.id)]
    assert answers == [[f"{DESK}/admin"], [f"{DESK}/other"]]


@pytest.mark.proves("S5.234")
async def test_the_trail_keeps_answers_whole_or_says_how_much_was_cut(http: httpx.AsyncClient, world: World) -> None:
    long = gate(
        "purpose", "session_start", questions=[question(f"q{n}", "text", "?", required=False) for n in range(7)]
    )
    await governed_elsewhere(world, desk(gates=[long]))
    session = await opened(http, world.service)
    answers = {f"q{n}": f"{n}" * 18_000 for n in range(7)}
    assert (await sent(http, world.service, f"/sessions/{session}/answers", gate="purpose", answers=answers))["passed"]
    (payload,) = [data for name, data in await told(world, session) if name == "checkpoint_response"]
    assert {id: text for id, text in payload["answers"].items() if id < "q5"} == {
        f"q{n}": answers[f"q{n}"] for n in range(5)
    }
    assert payload["answers"]["q5"] == "5" * 10_000
    assert payload["cut"] == {"q5": 18_000, "q6": 18_000}
