"""Approvals over HTTP: from the submitted job to the answer, and every refusal as a problem document."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.tenancy.model.orgs import Role
from tests.approvals.test_approvals import TRAIL, ask
from tests.fixtures.approvals import Shipping, ship, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.hostile import HOSTILE
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.stages import held_job
from tests.fixtures.workers import ended, make_agent, steps_of, turn, until, whole, working
from tests.http.test_http_bad_input import problem

NOBODY = "01936f3a-0000-7000-8000-000000000000"


class Door:
    """One person at the HTTP door."""

    def __init__(self, http: httpx.AsyncClient, who: Person) -> None:
        self._http, self._headers = http, who.headers

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self._http.get(f"/v1/{path}", params=query, headers=self._headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return await self._http.post(f"/v1/{path}", json=body, headers={**self._headers, **headers})

    async def card(self, job_id: UUID | str) -> dict[str, Any]:
        (item,) = (await self.get("approvals", job_id=str(job_id), status="pending"))["items"]
        details: dict[str, Any] = await self.get(f"approvals/{item['id']}")
        assert details["approval"]["id"] == item["id"]
        return details

    async def decide(
        self, card: dict[str, Any], decision: str = "approved", key: str | None = None, **more: Any
    ) -> httpx.Response:
        seen = card["approval"]
        body = {"decision": decision, "version": seen["version"], "input_hash": seen["input_hash"], **more}
        headers = {"Idempotency-Key": key} if key else {}
        return await self.post(f"approvals/{seen['id']}/decide", body, **headers)


@pytest.fixture
def door(http: httpx.AsyncClient, strict: World) -> Door:
    return Door(http, strict.admin)


# The whole story --------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.13")
@pytest.mark.parametrize("what", ["approve", "edit", "deny"])
async def test_a_job_stops_and_goes_on_as_somebody_decides(strict: World, door: Door, what: str) -> None:
    shipping = Shipping()
    await make_agent(strict, [turn(ship(), text="I ship.")], slug="shipper")
    submitted = await door.post("jobs", {"agent": "shipper", "payload": {"text": "Ship 1.0, please"}})
    assert submitted.status_code == 201, submitted.text
    job = UUID(submitted.json()["id"])
    async with working(strict.db, shipping.app):
        await until(strict, job, JobStatus.WAITING_FOR_APPROVAL)
        card = await door.card(job)
        seen = card["approval"]
        assert (seen["tool_name"], seen["arguments"], seen["risk"]) == ("ship", {"version": "1.0"}, "high")
        assert (seen["agent"], seen["agent_says"], seen["asked_for"]) == (
            "shipper", "I ship.", "Ship 1.0, please",
        )  # fmt: skip
        assert (seen["may_decide"], seen["deciders"], seen["required_clearance"]) == (True, ["Ada"], 0)
        assert seen["deadline"] > card["now"]
        extra: dict[str, dict[str, Any]] = {
            "edit": {"arguments": {"version": "1.0", "to": "staging"}},
            "deny": {"reason": "no"},
        }
        answer = await door.decide(card, "denied" if what == "deny" else "approved", **extra.get(what, {}))
        assert answer.status_code == 200, answer.text
        receipt = answer.json()
        assert receipt["result"] == "OK"
        done = await ended(strict, job)
    after = await door.get(f"approvals/{seen['id']}")
    assert after["approval"]["resolved_by_name"] == "Ada"
    assert after["approval"]["resolved_via"] == "api"
    if what == "deny":
        assert (done.status, shipping.shipped) == (JobStatus.FAILED, [])
        assert "denied by Ada: no" in (done.error_message or "")
    else:
        place = "staging" if what == "edit" else "production"
        assert (done.status, shipping.shipped) == (JobStatus.COMPLETED, [f"1.0 to {place}"])
        original = {"version": "1.0"} if what == "edit" else None
        assert after["approval"]["original_arguments"] == original
        steps = await door.get(f"jobs/{job}/steps")
        assert steps["items"][0]["calls"][0]["arguments"] == after["approval"]["arguments"]
    assert await whole(strict)


@pytest.mark.parametrize("what", ["approved", "denied", "edited", "voted"])
async def test_the_answer_to_a_decision_is_the_approval_as_others_read_it(
    strict: World, http: httpx.AsyncClient, door: Door, what: str
) -> None:
    if what == "voted":
        await strict.person(Role.APPROVER, name="Second")
        await apply_policies(strict.db, strict.admin.actor, ask(quorum=2, approvers="{roles: [admin, approver]}"))
    id, _ = await waiting(strict, Shipping())
    card = await door.card(id)
    more = {"arguments": {"version": "1.0", "to": "staging"}} if what == "edited" else {"reason": "Seen."}
    answer = await door.decide(card, "denied" if what == "denied" else "approved", **more)
    assert answer.status_code == 200, answer.text
    read = (await door.get(f"approvals/{card['approval']['id']}"))["approval"]
    assert answer.json()["approval"] == {**read, "deciders": []}


# Results and keys -------------------------------------------------------------------------------------------------


async def test_a_repeated_request_is_a_duplicate_with_and_without_a_key(strict: World, door: Door) -> None:
    id, _ = await waiting(strict, Shipping())
    card = await door.card(id)
    results = [(await door.decide(card, key=key)).json()["result"] for key in ("k", "k", None, "other")]
    assert results == ["OK", "DUPLICATE", "DUPLICATE", "DUPLICATE"]
    reused = problem(await door.decide(card, "denied", key="k"), 409, "idempotency_key_reused")
    assert "new key" in reused["hint"]
    conflict = problem(await door.decide(card, "denied"), 409, "approval_conflict")
    assert conflict["detail"] == "It is approved already by Ada."
    problem(await door.decide(card, key="has spaces"), 422, "invalid_request")
    problem(await door.decide(card, key="x" * 300), 422, "invalid_request")


async def test_refusals_have_their_status_code_and_hint_and_stand_on_the_trail(
    strict: World, other: World, http: httpx.AsyncClient, door: Door, admin: asyncpg.Connection
) -> None:
    cleared = await strict.person(Role.APPROVER, name="Cleared", clearance=5)
    policy = ask(clearance=5, template="dev_review", approvers="{roles: [admin, approver]}")
    id, _ = await waiting(strict, Shipping(), slug="shipper-0")
    mine = await door.card(id)
    await apply_policies(strict.db, strict.admin.actor, policy)
    id, _ = await waiting(strict, Shipping(), slug="shipper-1")
    card = await door.card(id)
    assert card["approval"]["may_decide"] is False
    assert "needs clearance 5" in card["approval"]["why_not"]

    def at(who: Person) -> Door:
        return Door(http, who)

    before = await digests(admin)
    approver = at(cleared)
    problem(await approver.decide(mine), 403, "not_an_approver")
    problem(await door.decide(card), 403, "clearance_too_low")
    problem(await approver.decide(card, version=9), 412, "approval_changed")
    problem(await approver.decide(card, input_hash="0" * 64), 412, "approval_changed")
    problem(await approver.decide(card, arguments={"version": 5}), 422, "edit_invalid")
    problem(await approver.decide(card, "denied", arguments={"version": "5"}), 422, "invalid_request")
    after = await digests(admin)
    assert {table for table in before if before[table] != after[table]} == TRAIL
    service = await strict.service_with(Role.APPROVER)
    problem(await at(service).decide(card), 403, "not_a_person")
    problem(await at(other.admin).decide(card), 404, "approval_not_found")
    problem(await at(strict.service).decide(card), 404, "approval_not_found")
    trail = await door.get("audit", session_id=card["approval"]["session_id"], limit=200)
    codes = [e["body"]["data"]["code"] for e in trail["items"] if e["action"] == "approval_refused"]
    assert codes == [
        "clearance_too_low", "approval_changed", "approval_changed", "edit_invalid", "invalid_request",
        "not_a_person",
    ]  # fmt: skip
    assert (await approver.decide(card)).json()["result"] == "OK"
    assert await whole(strict)


async def test_a_late_decision_is_told_that_it_is_late(strict: World, door: Door, admin: asyncpg.Connection) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    card = await door.card(id)
    assert asked.deadline is not None
    await Clock.install(admin, asked.deadline)
    late = problem(await door.decide(card), 409, "approval_expired")
    assert "cortex job resubmit" in late["hint"]


# Bad input --------------------------------------------------------------------------------------------------------


async def test_what_is_not_a_decision_changes_not_one_row(
    strict: World, http: httpx.AsyncClient, door: Door, admin: asyncpg.Connection
) -> None:
    id, _ = await waiting(strict, Shipping())
    card = await door.card(id)
    before = await digests(admin)
    bad: dict[str, Any]
    for bad in (
        {"decision": "maybe"}, {"decision": None}, {"decision": "cancelled"}, {"version": 0}, {"version": "1"},
        {"version": 1.5}, {"input_hash": "x"}, {"input_hash": None}, {"reason": 5}, {"reason": "x" * 2001},
        {"reason": "nul\x00"}, {"arguments": []}, {"arguments": "x"}, {"arguments": {"version": "a\x00"}},
        {"arguments": {"n": 2**70}}, {"surprise": True}, {"arguments": {"version": "x" * 300_000}},
    ):  # fmt: skip
        answer = await door.decide(card, **bad)
        problem(answer, 422, "invalid_request")
    path = f"/v1/approvals/{card['approval']['id']}/decide"
    seen = {"version": 1, "input_hash": card["approval"]["input_hash"], "decision": "approved"}
    json_headers = {**strict.admin.headers, "Content-Type": "application/json"}
    for raw in (
        json.dumps(seen | {"arguments": {"version": "\ud800"}}).encode(),
        json.dumps(seen).encode()[:-1] + b', "arguments": {"version": NaN}}',
        json.dumps(seen).encode()[:-1] + b', "arguments": {"version": Infinity}}',
        b"{", b"", b"[]", b"null", b'"approved"',
    ):  # fmt: skip
        problem(await http.post(path, content=raw, headers=json_headers), 422)
    # A megabyte of arguments does not even come in.
    large = json.dumps(seen | {"arguments": {"version": "x" * MAX_BODY_BYTES}}).encode()
    problem(await http.post(path, content=large, headers=json_headers), 413, "too_large")
    problem(await http.post(path, json=seen), 401, "key_missing")
    assert await digests(admin) == before


@pytest.mark.parametrize(
    ("id", "status", "code"),
    [
        (NOBODY, 404, "approval_not_found"),
        ("not-an-id", 422, "invalid_request"),
        ("01936f3a", 422, "invalid_request"),
        ("%00", 422, "invalid_request"),
        ("\u202e", 422, "invalid_request"),
    ],
)
async def test_ids_that_lead_nowhere(door: Door, http: httpx.AsyncClient, strict: World, id: str, status: int, code: str) -> None:  # fmt: skip
    problem(await http.get(f"/v1/approvals/{id}", headers=strict.admin.headers), status, code)
    body = {"decision": "approved", "version": 1, "input_hash": "0" * 64}
    problem(await door.post(f"approvals/{id}/decide", body), status, code)
    problem(await door.post(f"approvals/{id}/answer", {"verdict": "happened"}), status, code)


# Lists ------------------------------------------------------------------------------------------------------------


async def test_lists_are_filtered_and_paged(strict: World, http: httpx.AsyncClient, door: Door) -> None:
    id, asked = await waiting(strict, Shipping(), *(ship(str(n)) for n in range(5)))
    first = await door.get("approvals", limit=2, job_id=str(id))
    versions = [item["arguments"]["version"] for item in first["items"]]
    cursor = first["next_cursor"]
    while cursor:
        page = await door.get("approvals", limit=2, job_id=str(id), cursor=cursor)
        versions += [item["arguments"]["version"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(versions) == ["0", "1", "2", "3", "4"]
    await door.decide({"approval": (await door.get(f"approvals/{asked[0].id}"))["approval"]})
    by_status = [
        len((await door.get("approvals", status=s))["items"])
        for s in ("pending", "approved", "denied", "expired", "cancelled")
    ]
    assert by_status == [4, 1, 0, 0, 0]
    session = (await door.get(f"approvals/{asked[0].id}"))["approval"]["session_id"]
    assert len((await door.get("approvals", session_id=session))["items"]) == 5
    assert (await door.get("approvals", session_id=NOBODY))["items"] == []
    for bad in ({"status": "open"}, {"job_id": "x"}, {"limit": 0}, {"limit": 201}, {"surprise": 1}):
        problem(await http.get("/v1/approvals", params=bad, headers=strict.admin.headers), 422)
    jobs = (await http.get("/v1/jobs", params={"limit": 1}, headers=strict.admin.headers)).json()
    foreign = jobs["next_cursor"] or "bm9wZQ"
    answer = await http.get("/v1/approvals", params={"cursor": foreign}, headers=strict.admin.headers)
    problem(answer, 422, "invalid_cursor")


# Uncertain effects ------------------------------------------------------------------------------------------------


async def test_a_question_is_answered_and_not_decided(world: World, http: httpx.AsyncClient) -> None:
    held = await held_job(world)
    door = Door(http, world.admin)
    card = await door.card(held.job)
    seen = card["approval"]
    assert (seen["kind"], seen["deadline"], seen["may_decide"]) == ("uncertain_effect", None, True)
    assert seen["deciders"] == ["Ada"]
    problem(await door.decide(card), 409, "not_a_call")
    path = f"approvals/{seen['id']}/answer"
    for bad in ({}, {"verdict": "perhaps"}, {"verdict": "happened", "more": 1}):
        problem(await door.post(path, bad), 422, "invalid_request")
    steward = Door(http, await world.person(Role.STEWARD))
    problem(await steward.post(path, {"verdict": "happened"}), 403, "not_an_approver")
    answer = await door.post(path, {"verdict": "happened", "result": {"paid": 7}, "note": "in the ledger"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["approval"]["resolution_reason"] == "in the ledger"
    problem(await door.post(path, {"verdict": "fail"}), 409, "approval_conflict")
    assert (await steps_of(world, held.job))[1].calls[0].result == {"paid": 7}


async def test_a_request_is_decided_and_not_answered(strict: World, door: Door) -> None:
    id, _ = await waiting(strict, Shipping())
    card = await door.card(id)
    path = f"approvals/{card['approval']['id']}/answer"
    problem(await door.post(path, {"verdict": "did_not_happen"}), 409, "not_a_question")


# Hostile text -----------------------------------------------------------------------------------------------------


async def test_hostile_text_comes_back_as_the_data_that_it_is(strict: World, http: httpx.AsyncClient) -> None:
    # A name has no control characters; whatever else is in one is shown as it is.
    name = "".join(c for c in HOSTILE if c.isprintable() or ord(c) > 0x9F).strip()
    person = await strict.person(Role.ADMIN, name=name)
    door = Door(http, person)
    shipping = Shipping()
    await make_agent(strict, [turn(ship(HOSTILE, to=HOSTILE), text=HOSTILE)], slug="shipper")
    submitted = await door.post("jobs", {"agent": "shipper", "payload": {"text": HOSTILE}})
    job = UUID(submitted.json()["id"])
    async with working(strict.db, shipping.app):
        await until(strict, job, JobStatus.WAITING_FOR_APPROVAL)
        card = await door.card(job)
        seen = card["approval"]
        assert seen["arguments"] == {"version": HOSTILE, "to": HOSTILE}
        assert (seen["agent_says"], seen["asked_for"], seen["deciders"]) == (HOSTILE, HOSTILE, [name])
        raw = await http.get(f"/v1/approvals/{seen['id']}", headers=person.headers)
        assert raw.headers["Content-Type"] == "application/json"
        assert raw.headers["X-Content-Type-Options"] == "nosniff"
        assert not set(raw.text) & {"\x1b", "\x07", "\x08", "\r"}
        answer = await door.decide(card, reason=HOSTILE)
        assert answer.status_code == 200, answer.text
        assert (await ended(strict, job)).status is JobStatus.COMPLETED
    assert shipping.shipped == [f"{HOSTILE} to {HOSTILE}"]
    after = (await door.get(f"approvals/{seen['id']}"))["approval"]
    assert (after["resolution_reason"], after["resolved_by_name"]) == (HOSTILE, name)
    conflict = problem(await door.decide(card, "denied"), 409, "approval_conflict")
    assert HOSTILE in conflict["detail"]
    assert await whole(strict)
