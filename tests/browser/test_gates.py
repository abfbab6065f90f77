"""Gates in real browsers, on a plane that runs: the demo's, hostile ones, and atlases for stewards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import People, Stage
from tests.browser.test_inbox import DEVICES, approve, deny_all, require_readable

Picture = Callable[[Page, str], None]
DEMO = "support-demo"
MESSAGE = "Ticket 7 wants its money back, and ticket 8 is its double."
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp.exe\u200b <b>bold</b> " + "long" * 60
ODD = EVIL.replace("\u202e", "").replace("\u200b", "")
"""The same without what no name and no question of an atlas may have."""


@pytest.mark.proves("D.397", "D.398", "D.399")
def test_pass_a_gate_on_a_phone_and_see_what_gates_did(stage: Stage, people: People, picture: Picture) -> None:
    deny_all(stage)  # an empty inbox shows an arrival at once
    page = people.logged_in(phone=True)
    job = stage.submit(DEMO, MESSAGE)
    request = stage.asked(job)
    row = page.locator(f"#row-{request['id']}")
    expect(row).to_contain_text("Gate: money")
    picture(page, "phone-inbox-gate")
    row.locator("a").click()
    gate = page.locator(".gate")
    expect(gate.get_by_role("heading")).to_have_text("Gate: money")
    expect(gate).to_contain_text("Is this refund owed to the customer?")
    gate_box, arguments = gate.bounding_box(), page.locator(".json").first.bounding_box()
    assert gate_box is not None
    assert arguments is not None
    assert gate_box["y"] < arguments["y"], "the questions stand above the arguments"
    picture(page, "phone-card-gate")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

    other = people.with_session()
    other.goto(f"{stage.url}/jobs/{job['id']}")
    panel = other.locator("#may")
    expect(panel.get_by_role("heading", name="What it may do now")).to_be_visible()
    expect(panel.locator("li", has_text="ticket.get").locator(".may-allowed")).to_have_text("Allowed now")
    expect(panel.locator("li", has_text="refund.pay").locator(".may-asks_first")).to_have_text("Asks a person first")
    deleting = panel.locator("li", has_text="ticket.delete").first
    expect(deleting.locator(".may-asks_first")).to_have_text("Asks the agent first")
    expect(deleting).to_contain_text("gate delete-confirm")
    asked = panel.get_by_role("list", name="Asked first")
    expect(asked).to_contain_text("Is this refund owed to the customer?")
    assert panel.locator(".may-denied").count() == 0, "nothing is denied that is only asked about"
    expect(panel).to_contain_text("by the gate admin-access")
    expect(other.locator("#gates")).to_contain_text("onboarding is answered: agree = true")
    expect(other.locator(".lane", has_text="Gates").locator("rect.bar-gate-asked").first).to_be_attached()
    picture(other, "desktop-job-gates")
    panel.scroll_into_view_if_needed()
    picture(other, "desktop-job-permissions")
    approve(page)
    expect(page.locator("#card")).to_have_attribute("data-status", "approved")
    expect(other.locator("#gates")).to_contain_text("money is passed")  # without a reload
    expect(other.locator("#may")).to_have_count(0)
    assert stage.ended(job["id"])["status"] == "COMPLETED"


def manifest(atlas_id: str, version: str, **more: Any) -> str:
    asks = {"question_id": "why", "question": ODD, "response_type": "text"}
    made: dict[str, Any] = {
        "atlas_version": "1.0", "atlas_id": atlas_id, "version": version, "name": ODD[:200], "description": EVIL,
        "steward": {"id": "evil", "name": "Evil"},
        "capabilities": [{"capability_id": "desk", "name": ODD[:200], "actions": ["ticket.get"]}],
        "checkpoints": [
            {
                "checkpoint_id": "start", "name": ODD[:200], "trigger": {"type": "session_start"}, "mode": "blocking",
                "questions": [asks], "guidance": {"format": "markdown", "content": EVIL}, "inject_contexts": ["intro"],
            },
            {
                "checkpoint_id": "mine", "name": ODD[:200], "mode": "blocking", "audience": "human",
                "trigger": {"type": "action_pre", "patterns": ["ticket.get"]},
                "questions": [{"question_id": "sure", "question": ODD, "response_type": "boolean"}],
            },
        ],
        "context_blocks": [{"context_id": "intro", "name": ODD[:200], "content": EVIL}],
        "actions": [{"action_id": "ticket.get", "name": "Get", "risk_tier": "low"}],
    }  # fmt: skip
    return json.dumps(made | more)


def publish(stage: Stage, text: str) -> None:
    answer = stage.api.post("/v1/atlases", json={"manifest": text})
    assert answer.status_code in (200, 201), answer.text


def hostile(stage: Stage) -> tuple[str, dict[str, Any]]:
    """An atlas and a job of which nothing may be more than text; the job waits for a person."""
    atlas_id = f"evil.{uuid4().hex[:8]}"
    publish(stage, manifest(atlas_id, "1.0"))
    publish(stage, manifest(atlas_id, "1.1", description="tame", actions=[]))
    said = {"tool": "plane.answer", "arguments": {"gate": "start", "answers": {"why": EVIL}}}
    script = [{"calls": [said]}, {"calls": [{"tool": "ticket.get", "arguments": {"ticket": "7"}}]}, {"text": "Done."}]
    slug = f"evil-{uuid4().hex[:8]}"
    body = {
        "name": slug, "slug": slug, "role": "Tester", "team": "main",
        "model_config": {"model": "scripted", "script": script},
        "skill_config": {"app": "demo-support", "atlases": [atlas_id]},
    }  # fmt: skip
    made = stage.api.post("/v1/agents", json=body)
    assert made.status_code == 201, made.text
    return atlas_id, stage.asked(stage.submit(slug, EVIL))


@pytest.mark.proves("D.400", "D.401")
@DEVICES
def test_hostile_names_and_answers_are_read_and_nothing_more(
    stage: Stage, people: People, picture: Picture, phone: bool
) -> None:
    atlas_id, request = hostile(stage)
    page = people.with_session(phone=phone)
    device = "phone" if phone else "desktop"
    for name, path in {
        "gate-card": f"/approvals/{request['id']}",
        "gate-job": f"/jobs/{request['job_id']}",
        "gate-inbox": "/",
        "atlases": "/atlases",
        "atlas": f"/atlases/{atlas_id}",
        "atlas-diff": f"/atlases/{atlas_id}/diff?from=1.0&to=1.1",
    }.items():
        page.goto(stage.url + path)
        for part in page.locator("details").all():
            part.evaluate("part => { part.open = part.id !== 'deny' && part.id !== 'cancel'; }")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.locator("main img, main script, main b").count() == 0, name
        assert "\u202e" not in page.content(), name
        require_readable(page, picture, device, name)


@pytest.mark.proves("D.400")
def test_a_steward_compares_two_versions(stage: Stage, people: People, picture: Picture) -> None:
    atlas_id = f"desk.{uuid4().hex[:8]}"
    publish(stage, manifest(atlas_id, "1.0", name="Desk", description="before"))
    publish(stage, manifest(atlas_id, "1.1", name="Desk", description="after"))
    page = people.logged_in()
    page.get_by_role("link", name="Atlases").click()
    page.locator(".row-link", has_text=atlas_id).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Desk 1.1")
    page.get_by_label("From").select_option("1.0")
    page.get_by_label("To", exact=True).select_option("1.1")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".diff-old")).to_contain_text("before")
    expect(page.locator(".diff-new")).to_contain_text("after")
    picture(page, "desktop-atlas-compare")
    page.goto(f"{stage.url}/atlases/demo.support")
    expect(page.locator(".steps")).to_contain_text("Deleting is for ever")
    picture(page, "desktop-atlas-demo")
