"""Gates as somebody without scripts sees them: on a job's page, on a card, in the inbox, and as atlases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.verbs import approvals
from cortex_plane.gates.verbs import atlases
from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.main import demo
from cortex_plane.tenancy.model.orgs import Role
from tests.dashboard.test_dashboard_approvals import shown
from tests.fixtures.approvals import decide
from tests.fixtures.atlases import manifest, publish
from tests.fixtures.hostile import HOSTILE
from tests.fixtures.people import World
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import call, ended, make_agent, submit, turn, until, working

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202eevil"
ODD = EVIL.replace("\u202e", "")
"""The same without what no name and no question of an atlas may have."""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo's tools act."""
    monkeypatch.setenv("CORTEX_HOME", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def desk(world: World) -> AsyncIterator[None]:
    """The demo's support desk, with somebody at work."""
    await demo.prepare_gates_demo(world.db, world.admin.actor)
    async with working(world.db, demo.gates_app):
        yield


async def refund(world: World) -> tuple[UUID, Approval]:
    """The demo's job, once it asks a person."""
    agent = await agents.get_agent(world.db, world.admin.actor, demo.GATES_AGENT)
    id = await submit(world, agent, {"text": demo.GATES_MESSAGE})
    await until(world, id, JobStatus.WAITING_FOR_APPROVAL)
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, job_id=id)
    return id, page.items[0]


def order(text: str, *parts: str) -> bool:
    """Each stands somewhere after the one before it."""
    place = 0
    for part in parts:
        found = text.find(part, place)
        assert found >= 0, f"{part!r} does not come after that: {text[place : place + 2000]}"
        place = found + len(part)
    return True


@pytest.mark.proves("D.396", "D.397", "D.398", "D.399")
async def test_the_demo_shows_every_mode_on_its_pages(http: httpx.AsyncClient, world: World, outside: Path) -> None:
    async with desk(world):
        id, request = await refund(world)
        visitor = await Visitor.log_in(http, world)
        page = shown(await visitor.get(f"/jobs/{id}"))
        assert order(
            page, "What it may do now", "demo.support 1.0.1", "Actions", "Capabilities", "What it is told", "Gates",
        )  # fmt: skip
        for line in (
            "onboarding asks as the session begins", "onboarding is answered: agree = true",
            "onboarding is passed: opens desk, tells house-rules", "refund-hint advises because of “money back”",
            "admin-access asks before ticket.delete runs: its capability is locked",
            "admin-access is passed: opens admin", "delete-confirm asks before ticket.delete runs",
            "delete-confirm is answered for ticket.delete: for-ever = understood",
            "deletions looks on after ticket.delete ended", "money asks before refund.pay runs",
        ):  # fmt: skip
            assert line in page, line
        assert order(page, "Asked", "Answered", "Passed")
        assert "ticket.get Allowed now capability desk" in page
        assert "ticket.delete Asks the agent first gate delete-confirm" in page
        assert "refund.pay Asks a person first gate money" in page
        assert order(page, "Asked first", "delete-confirm Asks the agent", "money Asks a person", "Is this refund owed")
        assert "admin Open by the gate admin-access" in page
        assert "House rules context, by the gate onboarding" in page
        assert "one-refund 1 of 1 calls left" in page
        assert "May this run? refund.pay" in page

        card = shown(await visitor.get(f"/approvals/{request.id}"))
        assert request.rule == f"gate:{demo.GATES_ATLAS}/money"
        assert order(card, "Gate: money", "Is this refund owed to the customer?", "Arguments")
        assert "Gate: money" in shown(await visitor.get("/"))
        confirm = await visitor.decide(request.id, "approved")
        assert order(shown(confirm), "Gate: money", "Is this refund owed to the customer?", "Yes, approve")

        await decide(world, request)
        job = await ended(world, id)
        assert job.status is JobStatus.COMPLETED, job.error_message
        after = shown(await visitor.get(f"/jobs/{id}"))
        assert "What it may do now" not in after, "it does nothing any more"
        assert "money is passed" in after
    did = [(act["act"], act["ticket"]) for act in demo.acts()]
    assert did == [("delete", "8"), ("refund", "7")]


@pytest.mark.proves("D.397", "D.398")
async def test_a_page_is_made_again_when_a_gate_did_something(
    http: httpx.AsyncClient, world: World, outside: Path
) -> None:
    async with desk(world):
        id, _ = await refund(world)
    visitor = await Visitor.log_in(http, world)
    page = await visitor.get(f"/jobs/{id}")
    seen = page.text.partition('name="seen" value="')[2].partition('"')[0]
    assert (await visitor.get(f"/jobs/{id}/live?seen={seen}")).status_code == 204
    lane = page.text.partition('href="#gates">Gates</a>')[2].partition("</svg>")[0]
    assert 'class="bar bar-gate-asked"' in lane
    assert "<title>gate onboarding asks as the session begins</title>" in lane


@pytest.mark.proves("D.398")
async def test_questions_that_wait_and_gates_that_are_shut_are_shown(http: httpx.AsyncClient, world: World) -> None:
    await demo.prepare_gates_demo(world.db, world.admin.actor)
    body = {"agent": demo.GATES_AGENT, "kind": "external"}
    session = (await http.post("/v1/sessions", json=body, headers=world.admin.headers)).json()
    (job,) = (await jobs.list_page(world.db, world.admin.actor, None, 10)).items
    visitor = await Visitor.log_in(http, world)
    page = shown(await visitor.get(f"/jobs/{job.id}"))
    assert order(
        page, "What it may do now", "Questions that wait", "Gate: onboarding House rules 3 tries left",
        "Will you keep to the house rules?", "Actions", "ticket.get Asks the agent first gate onboarding", "admin Locked",
    )  # fmt: skip

    async def answer(gate: str, **answers: Any) -> str:
        path, given = f"/v1/sessions/{session['id']}/answers", {"gate": gate, "answers": answers}
        answered = await http.post(path, json=given, headers=world.admin.headers)
        assert answered.status_code in (200, 201), answered.text
        return shown(await visitor.get(f"/jobs/{job.id}"))

    page = await answer("onboarding", agree=False)
    assert "onboarding is answered: agree = false; not accepted" in page
    assert order(page, "2 tries left", "Its last answer was not accepted: agree")
    assert "Questions that wait" not in await answer("onboarding", agree=True)
    asked = {"key": "one", "tool": "ticket.delete", "arguments": {"ticket": "8"}}
    path = f"/v1/sessions/{session['id']}/calls"
    assert (await http.post(path, json=asked, headers=world.admin.headers)).status_code == 409
    for _ in range(3):
        page = await answer("delete-confirm", **{"for-ever": "not understood"})
    assert "The gate delete-confirm is shut. 3 tries" in page
    assert "Gate: admin-access Administration before ticket.delete 3 tries left" in page


@pytest.mark.proves("D.398")
async def test_what_is_denied_is_told_from_what_is_asked_about_and_from_what_is_allowed(
    http: httpx.AsyncClient, world: World
) -> None:
    never = {"policy_id": "never", "type": "deny", "actions": ["disk.wipe"], "reason": "Nobody wipes disks."}
    signed = {"policy_id": "signed", "type": "requires_approval", "actions": ["ticket.print"]}
    await publish(world, manifest(policies=[never, signed]))
    agent = await make_agent(world, [], app="nobody-has-it", atlases=["com.acme.support"])
    id = await submit(world, agent)
    visitor = await Visitor.log_in(http, world)
    answer = await visitor.get(f"/jobs/{id}")
    page = shown(answer)
    for line in (
        "ticket.get Allowed now capability tickets",
        "ticket.delete Asks the agent first gate delete-confirm",
        "ticket.print Asks a person first policy signed",
        "disk.wipe Denied policy never: Nobody wipes disks.",
        "delete-confirm Asks the agent Delete confirmation I understand that this cannot be undone.",
    ):
        assert line in page, line
    assert answer.text.count('class="may may-denied"') == 1


async def test_an_ungoverned_job_has_no_gates_on_its_page(http: httpx.AsyncClient, world: World) -> None:
    agent = await make_agent(world, [], app="nobody-has-it")
    id = await submit(world, agent)
    visitor = await Visitor.log_in(http, world)
    page = (await visitor.get(f"/jobs/{id}")).text
    for part in ("What it may do now", 'id="gates"', "key-gate"):
        assert part not in page


# Whatever others wrote ----------------------------------------------------------------------------------------------


def hostile_gates() -> str:
    asks = {"question_id": "why", "question": ODD, "response_type": "text"}
    return manifest(
        name=ODD, description=EVIL,
        capabilities=[{"capability_id": "desk", "name": ODD, "actions": ["ticket.get"]}],
        checkpoints=[
            {
                "checkpoint_id": "start", "name": ODD, "trigger": {"type": "session_start"}, "mode": "blocking",
                "questions": [asks], "guidance": {"format": "text", "content": EVIL}, "inject_contexts": ["intro"],
            },
            {
                "checkpoint_id": "mine", "name": ODD, "trigger": {"type": "action_pre", "patterns": ["ticket.get"]},
                "mode": "blocking", "audience": "human",
                "questions": [{"question_id": "sure", "question": ODD, "response_type": "boolean"}],
            },
        ],
        context_blocks=[{"context_id": "intro", "name": ODD, "content": EVIL}],
        policies=[], actions=[{"action_id": "ticket.get", "name": ODD, "risk_tier": "low"}],
    )  # fmt: skip


def inert(page: httpx.Response) -> str:
    """As text, once it is sure that nothing in it is more than that."""
    assert page.status_code == 200, page.text
    for tag in ("<script>alert", "<img", "\u202e", "\x1b"):
        assert tag not in page.text, tag
    return shown(page)


@pytest.mark.proves("D.401")
async def test_names_questions_and_answers_are_text(http: httpx.AsyncClient, world: World, outside: Path) -> None:
    await publish(world, hostile_gates())
    odd = call("plane.answer", gate="start", answers={"why": HOSTILE, EVIL: "x" * 5000})
    said = call("plane.answer", gate="start", answers={"why": HOSTILE})
    agent = await make_agent(
        world,
        [turn(odd), turn(said), turn(call("ticket.get", ticket="7"))],
        app="demo-support",
        atlases=["com.acme.support"],
    )
    async with working(world.db, demo.gates_app):
        id = await submit(world, agent)
        job = await until(world, id, *TERMINAL, JobStatus.WAITING_FOR_APPROVAL)
        assert job.status is JobStatus.WAITING_FOR_APPROVAL, job
    (request,) = (await approvals.list_approvals(world.db, world.admin.actor, None, 10, job_id=id)).items
    visitor = await Visitor.log_in(http, world)
    page = inert(await visitor.get(f"/jobs/{id}"))
    assert "start is answered:" in page
    assert "⟨U+202E⟩" in page
    assert "x" * 500 not in page.partition("Gates")[2].partition("Steps")[0]
    for path in (f"/approvals/{request.id}", "/", "/atlases", "/atlases/com.acme.support"):
        text = inert(await visitor.get(path))
        assert "<script>alert(1)</script>" in text or path == "/"
    assert "Gate: mine" in shown(await visitor.get("/"))


# Atlases ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.400")
async def test_stewards_read_atlases_their_versions_and_what_changed(http: httpx.AsyncClient, world: World) -> None:
    steward = await world.person(Role.STEWARD, name="Sue")
    visitor = await Visitor.log_in(http, world, steward)
    assert "No atlas yet" in shown(await visitor.get("/atlases"))
    await publish(world)
    gates: list[Any] = json.loads(manifest())["checkpoints"]
    gates[0]["name"] = "Think twice"
    gates.append(
        {
            "checkpoint_id": "refunds", "name": "Refunds", "mode": "advisory", "inject_contexts": ["intro"],
            "trigger": {"type": "keyword", "patterns": ["refund"]},
        }
    )  # fmt: skip
    await publish(world, manifest("1.1.0", checkpoints=gates))
    listed = shown(await visitor.get("/atlases"))
    assert order(listed, "Support com.acme.support", "2 versions", "1.1.0, by Ada", "1.1.0 holds")
    page = shown(await visitor.get("/atlases/com.acme.support"))
    assert order(
        page,
        "Support 1.1.0",
        "published by Ada",
        "belongs to Ada",
        "Think twice delete-confirm Blocking",
        "before *.delete runs",
    )
    assert "I understand that this cannot be undone. acknowledgment" in page
    assert "Refunds refunds Advisory" in page
    assert "Fires when any of refund is said." in page
    assert "tells intro" in page
    assert "Requires approval ask-before-deleting ticket.delete" in page
    assert order(page, "Versions", "1.1.0", "Holds", "1.0.0", "by Ada", "Older")
    old = shown(await visitor.get("/atlases/com.acme.support?version=1.0.0"))
    assert "Delete confirmation" in old
    assert "New sessions are bound to 1.1.0" in old
    diff = shown(await visitor.get("/atlases/com.acme.support/diff?from=1.0.0&to=1.1.0"))
    assert order(diff, "1.0.0 → 1.1.0", "1 added, 0 removed, 1 changed.")
    assert '"Delete confirmation" "Think twice"' in diff
    same = shown(await visitor.get("/atlases/com.acme.support/diff?from=1.1.0&to=1.1.0"))
    assert "They say the same." in same
    await atlases.retire_atlas(world.db, world.admin.actor, "com.acme.support", "1.1.0")
    retired = shown(await visitor.get("/atlases/com.acme.support?version=1.1.0"))
    assert "Retired by Ada" in retired
    assert "Support 1.0.0" in shown(await visitor.get("/atlases/com.acme.support"))


@pytest.mark.proves("D.400")
async def test_warnings_of_a_version_are_shown(http: httpx.AsyncClient, world: World) -> None:
    odd = await publish(world, manifest(actions=[]))
    assert odd.warnings
    visitor = await Visitor.log_in(http, world)
    page = shown(await visitor.get("/atlases/com.acme.support"))
    assert order(page, "Warnings", odd.warnings[0].split()[0], "Gates")
    assert f"{len(odd.warnings)} warning" in page


@pytest.mark.proves("D.400")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/atlases/nobody.has.it", 404),
        ("/atlases/%00", 404),
        ("/atlases/..%2f..%2fetc", 404),
        ("/atlases/com.acme.support?version=9.9", 404),
        ("/atlases/com.acme.support?version=%00%ff", 404),
        ("/atlases/com.acme.support/diff", 404),
        ("/atlases/com.acme.support/diff?from=1.0.0&to=<b>", 404),
        ("/atlases/com.acme.support/diff?from=1.0.0&to=2.0.0", 404),
        ("/atlases?above=<script>", 422),
    ],
)
async def test_what_is_not_there_is_a_page_that_says_so(
    http: httpx.AsyncClient, world: World, path: str, status: int
) -> None:
    await publish(world)
    visitor = await Visitor.log_in(http, world)
    answer = await visitor.get(path, Accept="text/html")
    assert answer.status_code == status, answer.text
    assert "<h1>" in answer.text
    assert "<script>alert" not in answer.text


@pytest.mark.proves("D.400")
async def test_who_may_not_read_atlases_has_no_link_to_them(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    await publish(world)
    member = await Visitor.log_in(http, world, await world.person(Role.MEMBER, name="Max"))
    assert 'href="/atlases"' not in (await member.get("/")).text
    assert (await member.get("/atlases")).status_code == 403
    stranger = await Visitor.log_in(http, other)
    assert 'href="/atlases"' in (await stranger.get("/")).text
    assert "No atlas yet" in shown(await stranger.get("/atlases"))
    assert (await stranger.get("/atlases/com.acme.support")).status_code == 404


async def test_many_atlases_come_page_by_page(http: httpx.AsyncClient, world: World) -> None:
    for number in range(51):
        await publish(world, manifest(atlas_id=f"a{number:02}"))
    visitor = await Visitor.log_in(http, world)
    first = await visitor.get("/atlases")
    assert first.text.count("data-row") == 50
    assert "/atlases?above=a49" in first.text
    rest = await visitor.get("/atlases?above=a49")
    assert (rest.text.count("data-row"), "a50" in rest.text, "above=" in rest.text) == (1, True, False)
