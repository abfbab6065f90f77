"""Requests that need another person, or more than one: in real browsers, on a plane that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.planes import Plane
from tests.browser.conftest import People, Stage, org_of_its_own
from tests.browser.test_inbox import DEVICES, approve, open_card, require_readable

Picture = Callable[[Page, str], None]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp.exe\u200b <b>bold</b>"
POLICIES = """
policies:
  - {name: two, target: deploy, effect: requires_approval, when: 'args.version.startsWith("2")', template: dev_review, quorum: 2}
  - name: up
    target: deploy
    effect: requires_approval
    when: 'args.version.startsWith("3")'
    template: dev_review
    standing: true
    timeout: 10h
    escalate_before: 6h
    escalate_to: [{roles: [steward]}, {roles: [admin]}]
  - {name: rest, target: "*", effect: allow}
"""


@pytest.fixture(scope="module")
def stage(plane: Plane) -> Iterator[Stage]:
    with org_of_its_own(plane, "reach") as stage:
        yield stage


@pytest.fixture(scope="module")
def team(stage: Stage) -> dict[str, str]:
    """People by name, and the policies under which they are asked."""
    people = {name: member(stage, name) for name in ("Bea", "Cal", "Dot")}
    stage.headers_of(people["Cal"])  # only who has proven a channel of their own can take somebody's part
    applied = stage.api.post("/v1/policies", json={"text": POLICIES})
    assert applied.status_code in (200, 201), applied.text
    return people


def member(stage: Stage, name: str, *roles: str) -> str:
    body = {"display_name": name, "roles": list(roles) or ["approver"], "clearance": 2}
    answer = stage.api.post("/v1/members", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def asked(stage: Stage, major: int, **more: Any) -> dict[str, Any]:
    """A deployment that the policy of its major version asks for."""
    slug = f"shipper-{uuid4().hex[:8]}"
    version = f"{major}.{uuid4().int % 10_000}.0"
    call = {"tool": "deploy", "arguments": {"version": version, "environment": "staging"}}
    stage.agent(slug, [{"text": "I deploy it.", "calls": [call]}, {"text": "Done."}])
    return stage.asked(stage.submit(slug, f"Ship {version}, please.", **more))


@pytest.mark.proves("D.183", "D.188")
def test_hand_it_on_from_a_phone_without_scripts(
    stage: Stage, people: People, team: dict[str, str], picture: Picture
) -> None:
    request = asked(stage, 3)
    page = people.with_session(team["Bea"], phone=True, scripts=False)
    open_card(page, stage, request)
    picture(page, "phone-escalating-card")
    page.get_by_role("link", name="Hand it on").click()
    page.locator("#delegate > summary").scroll_into_view_if_needed()
    if not page.locator("#delegate-to").is_visible():
        page.locator("#delegate > summary").click()
    page.get_by_label("To", exact=True).select_option("Cal")
    page.locator("#delegate-reason").fill(HOSTILE)
    picture(page, "phone-delegate")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Hand it on").click()
    expect(page.locator(".hops")).to_contain_text("Cal")
    expect(page.locator(".hops")).to_contain_text("⟨U+202E⟩")
    expect(page.locator("#actions")).to_contain_text("You handed your part in this to somebody else.")
    page.locator(".hops").scroll_into_view_if_needed()
    picture(page, "phone-handed-on")
    other = people.logged_in(team["Cal"], phone=True)
    expect(other.locator(f"#row-{request['id']}")).to_contain_text("Handed to you by Bea")
    picture(other, "phone-inbox-marks")
    open_card(other, stage, request)
    assert other.locator("main img, main script, main b").count() == 0
    approve(other)
    expect(other.locator("#card")).to_have_attribute("data-status", "approved")
    picture(other, "phone-approved")
    assert stage.ended(request["job_id"])["status"] == "COMPLETED"


@pytest.mark.proves("D.184", "D.188")
def test_two_browsers_meet_a_quorum(stage: Stage, people: People, team: dict[str, str], picture: Picture) -> None:
    request = asked(stage, 2)
    first, second = people.with_session(team["Bea"]), people.with_session(team["Cal"], phone=True)
    open_card(second, stage, request)
    expect(second.locator(".card-badges")).to_contain_text("0 of 2 votes")
    open_card(first, stage, request)
    approve(first)
    expect(first.locator("#actions")).to_contain_text("You said yes.")
    expect(first.locator("[data-approve]")).to_have_count(0)
    picture(first, "desktop-voted")
    expect(second.locator(".card-badges")).to_contain_text("1 of 2 votes")
    expect(second.locator(".votes")).to_contain_text("Bea")
    approve(second)
    expect(second.locator("#card")).to_have_attribute("data-status", "approved")
    expect(first.locator("#card")).to_have_attribute("data-status", "approved")
    assert stage.ended(request["job_id"])["status"] == "COMPLETED"


@pytest.mark.proves("D.186", "D.188")
def test_allow_the_next_calls_too(stage: Stage, people: People, team: dict[str, str], picture: Picture) -> None:
    request = asked(stage, 3)
    page = people.with_session(team["Dot"], phone=True)
    open_card(page, stage, request)
    page.locator("#standing > summary").click()
    page.get_by_label("Also allow the next calls").check()
    page.get_by_label("How many more").fill("7")
    page.get_by_label("For how long").select_option("8 hours")
    page.evaluate("htmx.trigger('#live', 'look')")
    picture(page, "phone-standing")
    stage.until(lambda: page.evaluate("!document.querySelector('.htmx-request')"))
    expect(page.get_by_label("How many more")).to_have_value("7")
    expect(page.get_by_label("Also allow the next calls")).to_be_checked()
    approve(page)
    expect(page.locator(".sheet .notice")).to_contain_text("the next 7 calls of this tool in this session")
    picture(page, "phone-standing-confirm")
    page.get_by_role("button", name="Yes, approve").click()
    expect(page.locator("#card")).to_have_attribute("data-status", "approved")
    page.goto(stage.url + "/standing")
    row = page.locator(".row", has_text="Dot")
    expect(row).to_contain_text("0 of 7 calls used")
    picture(page, "phone-standing-list")
    row.locator("summary").click()
    picture(page, "phone-standing-revoke")
    row.get_by_role("button", name="Revoke it").click()
    expect(page.locator(".row", has_text="Dot")).to_have_count(0)


@pytest.mark.proves("D.182", "D.188")
def test_somebody_goes_away_and_another_decides(
    stage: Stage, people: People, team: dict[str, str], picture: Picture
) -> None:
    away = member(stage, "Away", "admin")
    page = people.with_session(away, phone=True)
    page.goto(stage.url + "/absences")
    page.get_by_label("Who decides meanwhile").select_option("Cal")
    back = (datetime.now(UTC) + timedelta(days=3)).date().isoformat()
    page.get_by_label("Back on").fill(back)
    page.locator("#reason").fill(HOSTILE)
    picture(page, "phone-absence-add")
    page.get_by_role("button", name="Hand over").click()
    expect(page.locator(".list")).to_contain_text("Out of office")
    expect(page.locator(".list")).to_contain_text("⟨U+202E⟩")
    picture(page, "phone-absences")
    page.get_by_role("button", name="Cancel the absence of Away").click()
    expect(page.locator(".list")).to_contain_text("Cancelled")


@pytest.mark.proves("D.188")
@DEVICES
def test_it_can_be_read_and_everything_has_a_name(
    stage: Stage, people: People, team: dict[str, str], picture: Picture, phone: bool
) -> None:
    request = asked(stage, 3)
    hop = {"to": team["Cal"], "reason": "I know too little about staging."}
    path = f"/v1/approvals/{request['id']}/delegate"
    handed = stage.api.post(path, json=hop, headers=stage.headers_of(team["Bea"]))
    assert handed.status_code == 200, handed.text
    page = people.with_session(team["Cal"], phone=phone)
    device = "phone" if phone else "desktop"
    for name, path in {
        "inbox-reach": "/",
        "card-reach": f"/approvals/{request['id']}",
        "standing": "/standing?all=yes",
        "absences": "/absences",
        "deliveries": "/deliveries",
    }.items():
        page.goto(stage.url + path)
        for part in page.locator("details").all():
            part.evaluate("part => { part.open = part.id !== 'deny'; }")
        require_readable(page, picture, device, name)
