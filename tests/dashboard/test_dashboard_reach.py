"""Votes, delegation, escalation, delivery, standing approvals and absences, as somebody without scripts sees them."""

from __future__ import annotations

import html
import json
import re
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice, DelegationDraft
from cortex_plane.approvals.verbs import approvals, standing_approvals
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.model.orgs import AbsenceStatus, Role
from cortex_plane.tenancy.verbs import connections, orgs
from tests.calls.test_deadlines import tick
from tests.dashboard.test_dashboard_approvals import shown
from tests.fixtures.approvals import Shipping, decide, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.hostile import HOSTILE
from tests.fixtures.macs import sign_mappings
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.visitors import Visitor, fields_of, open_shop
from tests.fixtures.visitors import asked as asked_by

NAME = "<script>alert(1)</script> \u202eEve"
"""A name that the plane takes, and that no page may obey."""
SEEN_NAME = "<script>alert(1)</script> ⟨U+202E⟩ Eve"
TWO = """
policies:
  - {name: two, target: ship, effect: requires_approval, template: dev_review, quorum: 2, standing: true}
"""
STANDING = """
policies:
  - {name: stands, target: ship, effect: requires_approval, template: dev_review, standing: true}
"""
UP = """
policies:
  - name: up
    target: ship
    effect: requires_approval
    timeout: 10h
    escalate_before: 6h
    remind_before: never
    self_approval: false
    approvers: {roles: [operator]}
    escalate_to: [{roles: [approver]}, {roles: [steward]}]
"""


def id_of(person: Person) -> UUID:
    assert person.actor.user_account_id is not None
    return person.actor.user_account_id


def reads(page: httpx.Response) -> str:
    """As ``shown``, with hidden characters' marks closed up to what stands beside them."""
    assert "<script>alert" not in page.text
    assert "onerror=alert(2)>" not in page.text
    return shown(page)


async def asked(world: World, policies: str = TWO, **more: Any) -> Approval:
    await apply_policies(world.db, world.admin.actor, policies)
    _, (request,) = await waiting(world, Shipping(), **more)
    return request


async def approver(world: World, name: str, **more: Any) -> Person:
    return await world.person(Role.APPROVER, name=name, **more)


async def details(world: World, id: UUID) -> Any:
    return await approvals.get_approval(world.db, world.admin.actor, id)


# Votes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.184")
async def test_two_votes_meet_a_quorum_and_the_card_tells_who_gave_them(http: httpx.AsyncClient, strict: World) -> None:
    bea, eve = await approver(strict, "Bea"), await approver(strict, NAME)
    request = await asked(strict)
    first, second = [await Visitor.log_in(http, strict, person) for person in (bea, eve)]
    before = reads(await first.get(f"/approvals/{request.id}"))
    assert "0 of 2 votes" in before
    assert "one no ends it" in before
    confirm = await first.decide(request.id, "approved")
    assert "Yours is vote 1 of 2." in shown(confirm)
    done = await first.submit(confirm, f"/approvals/{request.id}/decide", decision="approved")
    assert done.status_code == 303
    voted = await first.get(f"/approvals/{request.id}")
    assert "You said yes. 1 of 2 votes: it waits for others." in shown(voted)
    assert "data-approve" not in voted.text, "nobody votes twice"
    assert 'value="denied"' in voted.text
    for place in ("/", f"/approvals/{request.id}"):
        assert "1 of 2 votes" in shown(await second.get(place))
    assert "You said yes" in shown(await first.get("/"))
    assert "You said yes" not in shown(await second.get("/"))
    await decide(strict, request, by=eve, reason=HOSTILE)
    text = reads(await first.get(f"/approvals/{request.id}"))
    assert "2 of 2 votes" in text
    assert "Bea said yes" in text
    assert f"{SEEN_NAME} said yes" in text
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in text
    assert "Voted yes Bea" in text


@pytest.mark.proves("D.184")
async def test_votes_that_an_edit_made_void_are_shown_as_such(http: httpx.AsyncClient, strict: World) -> None:
    bea, cal = await approver(strict, "Bea"), await approver(strict, "Cal")
    await approver(strict, "Dan")
    request = await asked(strict)
    await decide(strict, request, by=bea)
    await decide(strict, request, by=cal, arguments={"version": "2.0"})
    visitor = await Visitor.log_in(http, strict)
    text = shown(await visitor.get(f"/approvals/{request.id}"))
    assert "0 of 2 votes" in text, "whoever edits it does not approve it"
    assert re.search(r"Bea said yes .{1,40}, to version 1: void, because it changed since", text)
    assert not re.search(r"Cal said yes .{1,40}void", text)


# Delegation ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.183")
async def test_a_part_is_handed_on_from_the_card(http: httpx.AsyncClient, strict: World) -> None:
    bea, eve = await approver(strict, "Bea"), await strict.person(Role.MEMBER, name=NAME)
    request = await asked(strict, STANDING)
    visitor = await Visitor.log_in(http, strict, bea)
    page = await visitor.get(f"/approvals/{request.id}")
    chosen = re.search(rf'<option value="{id_of(eve)}">(.*?)</option>', page.text)
    assert chosen is not None
    assert html.unescape(chosen.group(1)) == "<script>alert(1)</script> ⟨U+202E⟩Eve"
    assert f'<option value="{id_of(bea)}"' not in page.text, "not to oneself"
    assert f'<option value="{id_of(strict.admin)}"' not in page.text, "nor to whoever asked for it"
    path = f"/approvals/{request.id}/delegate"
    done = await visitor.submit(page, path, to=str(id_of(eve)), reason=HOSTILE)
    assert (done.status_code, done.headers["location"]) == (303, f"/approvals/{request.id}")
    after = await visitor.get(f"/approvals/{request.id}")
    text = reads(after)
    assert "You cannot decide this. You handed your part in this to somebody else." in text
    assert f"Bea → to {SEEN_NAME}" in text
    assert "because “<script>alert(1)</script>" in text
    assert f"Handed on Bea to {SEEN_NAME}" in text, "the timeline says it in words"
    theirs = await Visitor.log_in(http, strict, eve)
    row = reads(await theirs.get("/"))
    assert "Handed to you by Bea" in row
    assert "out of office" not in row
    card = await theirs.get(f"/approvals/{request.id}")
    assert "data-approve" in card.text


@pytest.mark.proves("D.183")
async def test_a_colleague_is_found_by_name_and_two_of_one_name_are_told_apart(
    http: httpx.AsyncClient, strict: World
) -> None:
    bea = await approver(strict, "Bea")
    kims = [await strict.person(Role.MEMBER, name="Kim") for _ in range(2)]
    await strict.person(Role.MEMBER, name="Lee")
    request = await asked(strict, STANDING)
    visitor = await Visitor.log_in(http, strict, bea)
    page = await visitor.get(f"/approvals/{request.id}")
    for kim in kims:
        assert f"Kim (…{str(id_of(kim))[-8:]})" in page.text
    path = f"/approvals/{request.id}/delegate"
    two = await visitor.submit(page, path, to="Kim")
    assert (two.status_code, "Several members have that name." in shown(two)) == (422, True)
    for nobody in ("Nobody", "", "Le", "a\x00b"):
        refused = await visitor.submit(page, path, to=nobody)
        assert refused.status_code in (404, 422), nobody
    assert (await details(strict, request.id)).delegations == []
    assert (await visitor.submit(page, path, to="Lee")).status_code == 303


@pytest.mark.proves("D.183")
async def test_what_cannot_be_handed_on_is_said_above_the_card_and_changes_nothing(
    http: httpx.AsyncClient, strict: World
) -> None:
    bea, low = await approver(strict, "Bea", clearance=3), await strict.person(Role.MEMBER, name="Low")
    await strict.person(Role.MEMBER, name="High", clearance=3)
    cleared = STANDING.replace("template:", "clearance: 3, template:")
    request = await asked(strict, cleared)
    visitor = await Visitor.log_in(http, strict, bea)
    page = await visitor.get(f"/approvals/{request.id}")
    assert f'<option value="{id_of(low)}"' not in page.text
    path = f"/approvals/{request.id}/delegate"
    refused = await visitor.submit(page, path, to=str(id_of(low)))
    assert refused.status_code == 403
    assert "This needs clearance 3; Low has 0." in shown(refused)
    oneself = await visitor.submit(page, path, to=str(id_of(bea)))
    assert (oneself.status_code, "You have it already." in shown(oneself)) == (422, True)
    assert (await details(strict, request.id)).delegations == []
    token = fields_of(page.text, path)["form_token"]
    foreign = await visitor.send(path, {"to": str(id_of(low)), "form_token": token[:-1] + "x"})
    assert foreign.status_code == 403
    stranger = await Visitor.log_in(http, strict, await strict.person(Role.MEMBER, name="Strange"))
    assert (await stranger.get(f"/approvals/{request.id}")).status_code == 404
    await decide(strict, request, by=bea)
    late = await visitor.submit(page, path, to=str(id_of(low)))
    assert late.status_code == 409
    assert "approved already by Bea" in shown(late)


@pytest.mark.proves("D.183", "D.187")
async def test_out_of_office_is_marked_wherever_the_part_went(http: httpx.AsyncClient, strict: World) -> None:
    bea, eve = await approver(strict, "Bea"), await strict.person(Role.MEMBER, name=NAME)
    visitor = await Visitor.log_in(http, strict, bea)
    page = await visitor.get("/absences")
    gone = await visitor.submit(page, "/absences", to=str(id_of(eve)), ends=_in_days(page, 3), reason=HOSTILE)
    assert gone.status_code == 303
    request = await asked(strict, STANDING)
    text = reads(await visitor.get(f"/approvals/{request.id}"))
    assert f"Bea → to {SEEN_NAME} Out of office" in text
    assert f"Handed on Bea to {SEEN_NAME}, being out of office" in text
    assert "because “<script>alert(1)</script>" in text
    assert "“out of office" not in text, "it is said once"
    theirs = await Visitor.log_in(http, strict, eve)
    assert "Handed to you by Bea, out of office" in reads(await theirs.get("/"))


def _in_days(page: httpx.Response, days: int) -> str:
    today = re.search(r'min="(\d{4}-\d\d-\d\d)"', page.text)
    assert today is not None
    return (date.fromisoformat(today.group(1)) + timedelta(days=days)).isoformat()


# Escalation ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.184", "D.187")
async def test_escalation_says_how_far_it_is_when_it_goes_up_and_to_whom(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    await strict.person(Role.OPERATOR, name="Op")
    bea = await approver(strict, "Bea")
    await strict.person(Role.STEWARD, name="Stew")
    request = await asked(strict, UP)
    visitor = await Visitor.log_in(http, strict)
    text = shown(await visitor.get(f"/approvals/{request.id}"))
    assert "Not escalated yet; 2 levels to go · goes up in 3 h 59 min" in text
    assert "Then whoever is approver may decide too. The deadline stays." in text
    assert "Escalated" not in shown(await visitor.get("/"))
    assert request.escalate_at is not None
    await Clock.install(admin, request.escalate_at)
    assert await tick(strict) == ["escalated"]
    theirs = await Visitor.log_in(http, strict, bea)
    text = shown(await theirs.get(f"/approvals/{request.id}"))
    assert "Level 1 of 2" in text
    assert "Then whoever is steward may decide too." in text
    assert "Escalated to level 1" in text
    assert "data-approve" in (await theirs.get(f"/approvals/{request.id}")).text
    assert "Escalated, level 1 of 2" in shown(await theirs.get("/"))


# Delivery ------------------------------------------------------------------------------------------------------------


async def mailed(world: World, admin: asyncpg.Connection, person: Person, address: str) -> None:
    """A person who can be reached by mail."""
    connection = await connections.create_connection(
        world.db, world.admin.actor, ConnectionDraft(channel_type="email", name=f"mail {new_id()}")
    )
    await admin.execute(
        "insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)"
        " values ($1, $2, $3, $4, 'email', $5, now())",
        world.org_id, new_id(), connection.id, id_of(person), address,
    )  # fmt: skip
    await sign_mappings(world.db, world.org_id)


async def given_up(admin: asyncpg.Connection, why: str) -> UUID:
    id: UUID = await admin.fetchval(
        "update notification set status = 'dead', next_attempt_at = null, attempts = 12, last_error = $1 returning id",
        why,
    )
    return id


@pytest.mark.proves("D.185", "D.187")
async def test_staff_see_what_was_not_delivered_and_send_it_again(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    eve = await approver(strict, NAME)
    await mailed(strict, admin, eve, "<b>eve</b>@example.com")
    request = await asked(strict, STANDING)
    visitor = await Visitor.log_in(http, strict)
    waits = reads(await visitor.get(f"/approvals/{request.id}"))
    assert f"Mail to {SEEN_NAME} <b>eve</b>@example.com Waiting to be sent" in waits
    id = await given_up(admin, HOSTILE)
    assert "not delivered to somebody" in shown(await visitor.get("/"))
    card = await visitor.get(f"/approvals/{request.id}")
    text = reads(card)
    assert "Given up 12 tries so far" in text
    assert "⟨U+200B⟩" in text
    dead = await visitor.get("/deliveries")
    assert "Given up" in reads(dead)
    assert str(id) in dead.text
    path = f"/deliveries/{id}/resend"
    plain = await Visitor.log_in(http, strict, await strict.person(Role.MEMBER, name="Mel"))
    assert (await plain.get("/deliveries")).status_code == 403
    assert "/deliveries" not in (await plain.get("/")).text
    only_looks = await Visitor.log_in(http, strict, await strict.person(Role.STEWARD, name="Stew"))
    assert path not in (await only_looks.get("/deliveries")).text
    before = await digests(admin)
    token = fields_of((await visitor.get("/deliveries")).text, path)
    assert (await only_looks.send(path, token)).status_code == 403
    assert (await visitor.send(path, {})).status_code == 403
    assert await digests(admin) == before
    done = await visitor.submit(card, path)
    assert (done.status_code, done.headers["location"]) == (303, f"/approvals/{request.id}")
    assert (await deliveries.get_delivery(strict.db, strict.admin.actor, id)).status == "pending"
    again = await visitor.send(path, {**token})
    assert again.status_code == 409
    assert "not delivered to somebody" not in shown(await visitor.get("/"))
    assert str(id) in (await visitor.get("/deliveries?status=pending")).text
    assert (await visitor.get("/deliveries?status=lost")).status_code == 422


@pytest.mark.proves("D.185")
async def test_who_is_not_staff_sees_no_addresses(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    pat = await strict.person(Role.MEMBER, name="Pat")
    eve = await approver(strict, "Eve")
    await mailed(strict, admin, eve, "eve@example.com")
    await apply_policies(strict.db, strict.admin.actor, STANDING.replace("ship", "order"))
    async with open_shop(strict):
        request = await asked_by(strict, by=pat)
    await given_up(admin, "550 no such user")
    visitor = await Visitor.log_in(http, strict, pat)
    for place in ("/", f"/approvals/{request.id}"):
        page = await visitor.get(place)
        assert page.status_code == 200
        for secret in ("eve@example.com", "550 no such user", "not delivered"):
            assert secret not in page.text


# Standing approvals --------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.186")
async def test_a_standing_approval_is_offered_confirmed_listed_and_revoked(
    http: httpx.AsyncClient, strict: World
) -> None:
    bea = await approver(strict, NAME)
    request = await asked(strict, STANDING)
    visitor = await Visitor.log_in(http, strict, bea)
    page = await visitor.get(f"/approvals/{request.id}")
    assert "Also allow more calls like this" in shown(page)
    chosen = {
        "standing": "yes", "standing_calls": "3", "standing_seconds": "28800", "standing_same": "yes",
        "reason": HOSTILE,
    }  # fmt: skip
    path = f"/approvals/{request.id}/decide"
    confirm = await visitor.submit(page, path, decision="approved", confirmed="yes", **chosen)
    assert confirm.status_code == 200, "a second press on the card is not enough: it is said in words first"
    assert (
        "And you allow more than this: the next 3 calls of this tool in this session, with exactly these arguments,"
        " for 8 hours from now." in shown(confirm)
    )
    assert (await details(strict, request.id)).approval.status is ApprovalStatus.PENDING
    done = await visitor.submit(confirm, f"/approvals/{request.id}/decide", decision="approved")
    assert done.status_code == 303
    (made,) = (await standing_approvals.list_page(strict.db, bea.actor, None, 10)).items
    assert (made.max_calls, made.input_hash, made.used_calls) == (3, request.input_hash, 0)
    assert made.expires_at - made.created_at == timedelta(hours=8)
    listed = await visitor.get("/standing")
    text = reads(listed)
    assert "ship the same arguments only In force" in text
    assert f"Allowed by {SEEN_NAME}" in text
    assert "0 of 3 calls used" in text
    other = await Visitor.log_in(http, strict, await approver(strict, "Cal"))
    assert f"/standing/{made.id}/revoke" not in (await other.get("/standing")).text
    path = f"/standing/{made.id}/revoke"
    token = fields_of((await other.get("/")).text, "/logout")
    assert (await other.send(path, token)).status_code == 403
    assert (await visitor.submit(listed, path, reason=HOSTILE)).status_code == 303
    assert "Every call is asked for" in shown(await visitor.get("/standing"))
    gone = reads(await visitor.get("/standing?all=yes"))
    assert f"Covers nothing: {SEEN_NAME} revoked it" in gone
    assert "Revoked because “<script>alert(1)</script>" in gone


@pytest.mark.proves("D.186")
async def test_a_tick_that_nobody_set_allows_nothing_more(http: httpx.AsyncClient, strict: World) -> None:
    bea = await approver(strict, "Bea")
    request = await asked(strict, STANDING)
    visitor = await Visitor.log_in(http, strict, bea)
    page = await visitor.get(f"/approvals/{request.id}")
    path = f"/approvals/{request.id}/decide"
    numbers = {"standing_calls": "5", "standing_seconds": "3600", "confirmed": "yes"}
    for bad in ({"standing_calls": "0"}, {"standing_calls": "many"}, {"standing_seconds": "99999999"}):
        refused = await visitor.submit(page, path, decision="approved", **{**numbers, "standing": "yes", **bad})
        assert refused.status_code == 422, bad
    done = await visitor.submit(page, path, decision="approved", **numbers)
    assert done.status_code == 303
    assert (await standing_approvals.list_page(strict.db, bea.actor, None, 10)).items == []


@pytest.mark.proves("D.186")
async def test_it_is_not_offered_where_it_could_not_be_given(http: httpx.AsyncClient, strict: World) -> None:
    await approver(strict, "Bea")
    cal = await approver(strict, "Cal")
    visitor = await Visitor.log_in(http, strict, cal)
    for n, policies in enumerate(
        (TWO, STANDING.replace("standing: true", "standing: false"), STANDING.replace("dev_review", "critical_path"))
    ):
        request = await asked(strict, policies, slug=f"shipper-{n}")
        page = await visitor.get(f"/approvals/{request.id}")
        assert "data-approve" in page.text
        assert "standing_calls" not in page.text


# What the job says, and proof ----------------------------------------------------------------------------------------


@pytest.mark.proves("D.184")
async def test_the_jobs_own_words_are_labelled(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    request = await asked(strict, STANDING.replace("dev_review", "dev_only"))
    await admin.execute(
        "update approval_request set action = $1, details = $2", HOSTILE, json.dumps({HOSTILE: [HOSTILE]})
    )
    visitor = await Visitor.log_in(http, strict)
    text = reads(await visitor.get(f"/approvals/{request.id}"))
    assert text.index("The job says") < text.index("The job's own words, not checked by anybody.")
    assert text.count("⟨U+202E⟩") >= 3


@pytest.mark.proves("D.184")
async def test_the_receipt_of_a_decision_is_a_file(http: httpx.AsyncClient, strict: World) -> None:
    request = await asked(strict, STANDING.replace("dev_review", "dev_only"))
    visitor = await Visitor.log_in(http, strict)
    path = f"/approvals/{request.id}/receipt"
    assert path not in (await visitor.get(f"/approvals/{request.id}")).text
    assert (await visitor.get(path)).status_code == 404
    await decide(strict, request, Choice.DENIED)
    assert path in (await visitor.get(f"/approvals/{request.id}")).text
    got = await visitor.get(path)
    assert got.headers["content-disposition"] == f'attachment; filename="receipt-{request.id}.json"'
    assert got.json()["approval_id"] == str(request.id)
    stranger = await Visitor.log_in(http, strict, await strict.person(Role.MEMBER, name="Strange"))
    assert (await stranger.get(path)).status_code == 404


# Absences ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.182")
async def test_absences_are_added_listed_and_cancelled(http: httpx.AsyncClient, strict: World) -> None:
    eve = await strict.person(Role.MEMBER, name=NAME)
    pat = await strict.person(Role.MEMBER, name="Pat")
    visitor = await Visitor.log_in(http, strict, pat)
    page = await visitor.get("/absences")
    assert "Nobody is away" in shown(page)
    assert 'name="member"' not in page.text, "for others it takes an admin"
    fields = {"to": str(id_of(eve)), "ends": _in_days(page, 5), "reason": HOSTILE}
    assert (await visitor.submit(page, "/absences", **fields)).status_code == 303
    listed = await visitor.get("/absences")
    text = reads(listed)
    assert f"Pat → is represented by {SEEN_NAME} Out of office" in text
    again = await visitor.submit(page, "/absences", **fields)
    assert again.status_code == 409
    assert "There is an absence in that time already." in reads(again)
    assert f'<option value="{id_of(eve)}" selected>' in again.text, "what was filled in is still there"
    for bad, said in (
        ({"ends": ""}, "Say when you are back."),
        ({"ends": "soon"}, "That is no day."),
        ({"ends": "2020-01-01"}, "would end before it begins"),
        ({"to": ""}, "no active member of that name"),
        ({"to": str(new_id())}, "no active member with this id"),
        ({"reason": "x" * 2001}, "too long"),
    ):
        refused = await visitor.submit(page, "/absences", **{**fields, **bad})
        assert refused.status_code in (404, 422), bad
        assert said in shown(refused), bad
    (made,) = (await orgs.list_absences(strict.db, pat.actor, None, 10)).items
    assert f"/absences/{made.id}/cancel" not in (await (await Visitor.log_in(http, strict, eve)).get("/absences")).text
    assert (await visitor.submit(listed, f"/absences/{made.id}/cancel")).status_code == 303
    after = await orgs.get_absence(strict.db, pat.actor, made.id)
    assert after.status is AbsenceStatus.CANCELLED
    boss = await Visitor.log_in(http, strict)
    page = await boss.get("/absences")
    assert str(made.id) in page.text
    made_for = await boss.submit(page, "/absences", **{**fields, "member": str(id_of(pat))})
    assert made_for.status_code == 303
    assert "Entered by Ada" in shown(await visitor.get("/absences"))
    guest = await Visitor.log_in(http, strict, await strict.person(Role.GUEST, name="Gus"))
    assert (await guest.get("/absences")).status_code == 403
    assert "/absences" not in (await guest.get("/")).text


async def test_every_new_page_needs_a_login_and_keeps_its_frame(http: httpx.AsyncClient, strict: World) -> None:
    visitor = await Visitor.log_in(http, strict)
    for path in ("/standing", "/absences", "/deliveries"):
        assert (await http.get(path)).status_code == 401
        page = await visitor.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r"<script(?! src=)|\son\w+=|style=", page.text)
        assert f'<a href="{path}" aria-current="page">' in page.text
        for act in (f"{path}/{new_id()}/revoke", f"{path}/nothing/cancel"):
            assert (await visitor.send(act, {})).status_code in (403, 404, 405)


@pytest.mark.proves("D.183")
async def test_a_part_is_handed_on_over_http(http: httpx.AsyncClient, strict: World) -> None:
    bea, cal = await approver(strict, "Bea"), await strict.person(Role.MEMBER, name="Cal")
    request = await asked(strict, STANDING)
    offered = await http.get(f"/v1/delegates?approval_id={request.id}", headers=bea.headers)
    assert [each["display_name"] for each in offered.json()["items"]] == ["Cal"], "Ada asked for it herself"
    path = f"/v1/approvals/{request.id}/delegate"
    body = {"to": str(id_of(cal)), "reason": "a train"}
    done = await http.post(path, json=body, headers=bea.headers)
    assert done.status_code == 200
    assert done.json()["may_decide"] is False
    again = await http.post(path, json=body, headers=bea.headers)
    assert (again.status_code, again.json()["code"]) == (403, "delegated_away")
    draft = DelegationDraft(to=id_of(bea))
    assert (await http.post(path, json={"to": str(draft.to)}, headers=cal.headers)).json()["code"] == (
        "delegation_cycle"
    )
