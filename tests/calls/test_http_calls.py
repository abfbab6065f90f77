"""Agents that run elsewhere, over HTTP: they ask before they act, and everything stands in the same ledger."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.db.database import Database
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import Person, World, apply_policies

REFUND = {"order": "A-1", "cents": 500}
MAIL_DENIED = """
policies:
  - {name: no, target: "mail.*", effect: deny}
  - {name: rest, target: "*", effect: allow}
"""


async def opened(http: httpx.AsyncClient, person: Person, agent: str = "deployer") -> str:
    answer = await http.post("/v1/sessions", json={"agent": agent, "kind": "external"}, headers=person.headers)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert made["kind"] == "external"
    assert made["status"] == "ACTIVE"
    return str(made["id"])


async def asked(
    http: httpx.AsyncClient, person: Person, session: str, *, status: int = 201, **more: Any
) -> dict[str, Any]:
    body = {"tool": "refunds.create", "arguments": REFUND, **more}
    answer = await http.post(f"/v1/sessions/{session}/calls", json=body, headers=person.headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def post(http: httpx.AsyncClient, person: Person, path: str, *, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=body, headers=person.headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ended(
    http: httpx.AsyncClient, person: Person, call: dict[str, Any], outcome: str, *, status: int = 200, **more: Any
) -> dict[str, Any]:
    body = {"status": outcome, **more}
    answer = await http.post(f"/v1/calls/{call['id']}/outcome", json=body, headers=person.headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def looked(http: httpx.AsyncClient, person: Person, id: str, wait: float = 0) -> dict[str, Any]:
    answer = await http.get(f"/v1/calls/{id}?wait={wait}", headers=person.headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def decide(
    world: World, call: dict[str, Any], choice: Choice = Choice.APPROVED, by: Person | None = None, **more: Any
) -> None:
    actor = (by or world.admin).actor
    id = UUID(call["approval_id"])
    card = (await approvals.get_approval(world.db, actor, id)).approval
    await decisions.decide(
        world.db,
        actor,
        id,
        ApprovalDecision(decision=choice, version=card.version, input_hash=card.input_hash, **more),
        Channel.API,
    )


def digest(arguments: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(arguments)).hexdigest()


@pytest.mark.proves("D.270")
async def test_an_allowed_call_costs_two_requests(http: httpx.AsyncClient, world: World) -> None:
    session = await opened(http, world.service)
    call = await asked(http, world.service, session, dispatch=True)
    assert (call["verdict"], call["status"], call["next"]) == ("allow", "intended", "run")
    assert call["arguments"] == REFUND
    assert call["input_hash"] == digest(REFUND)
    assert call["dispatch_before"]
    done = await ended(http, world.service, call, "completed", result={"refund": "r1"}, attempt=1)
    assert done == {"id": call["id"], "status": "completed", "approval_id": None}
    now = await looked(http, world.service, call["id"])
    assert (now["next"], now["result"]) == ("use", {"refund": "r1"})


@pytest.mark.proves("D.270")
async def test_the_ledger_is_the_same_as_a_workers(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    session = await opened(http, world.service)
    call = await asked(http, world.service, session, says="The customer asked for it.")
    assert (call["status"], call["next"]) == ("allowed", "begin")
    begun = await post(http, world.service, f"/v1/calls/{call['id']}/intent", input_hash=digest(REFUND))
    assert begun["next"] == "run"
    assert begun["dispatch_before"] > begun["now"]
    await ended(http, world.service, call, "failed", error="no such order")
    row = await admin.fetchrow("select status, error, verdict, attempt from tool_call where id = $1", UUID(call["id"]))
    assert row is not None
    assert tuple(row) == ("failed", "no such order", "allow", 1)
    trail = (await http.get(f"/v1/audit?session_id={session}", headers=world.admin.headers)).json()
    actions = [entry["action"] for entry in trail["items"]]
    for action in ("session_created", "job_created", "call_authorized", "call_intended", "call_settled"):
        assert action in actions
    steps = (await http.get(f"/v1/jobs/{call['job_id']}/steps", headers=world.service.headers)).json()["items"]
    assert steps[0]["text"] == "The customer asked for it."
    assert steps[0]["calls"][0]["id"] == call["id"]


@pytest.mark.proves("D.271")
async def test_a_request_of_a_session_without_owner_is_not_found_by_strangers(
    http: httpx.AsyncClient, strict: World
) -> None:
    call = await asked(http, strict.service, await opened(http, strict.service))
    stranger = await strict.person(Role.MEMBER)
    path = f"/v1/approvals/{call['approval_id']}/decide"
    decision = {"decision": "denied", "version": 1, "input_hash": call["input_hash"]}
    refused = await post(http, stranger, path, status=404, **decision)
    assert refused["code"] == "approval_not_found"


@pytest.mark.proves("D.271")
async def test_a_call_waits_for_a_person_and_runs_once(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session, dispatch=True, key="k1")
    assert (call["verdict"], call["status"], call["next"]) == ("requires_approval", "awaiting", "wait")
    assert call["approval_id"]
    assert call["deadline"]
    refused = await post(
        http, strict.service, f"/v1/calls/{call['id']}/intent", status=409, input_hash=call["input_hash"]
    )
    assert refused["code"] == "call_awaiting"
    job = (await http.get(f"/v1/jobs/{call['job_id']}", headers=strict.service.headers)).json()
    assert (job["status"], job["open_approvals"], job["kind"]) == ("WAITING_FOR_APPROVAL", 1, "external")
    waiting = asyncio.create_task(looked(http, strict.service, call["id"], wait=30))
    await decide(strict, call)
    assert (await waiting)["next"] == "begin"
    job = (await http.get(f"/v1/jobs/{call['job_id']}", headers=strict.service.headers)).json()
    assert (job["status"], job["open_approvals"]) == ("RUNNING", 0)
    intent = {"input_hash": call["input_hash"]}
    answers = await asyncio.gather(
        *(
            http.post(
                f"/v1/calls/{call['id']}/intent", json=intent | {"sender": f"s{n}"}, headers=strict.service.headers
            )
            for n in range(4)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    (won,) = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    assert answers[won].json()["next"] == "run"
    assert {a.json()["code"] for a in answers if a.status_code == 409} == {"call_in_doubt"}
    # Only the answer was lost: the same try is told the same again.
    again = await post(http, strict.service, f"/v1/calls/{call['id']}/intent", sender=f"s{won}", **intent)
    assert again["next"] == "run"
    assert again["attempt"] == 1
    await ended(http, strict.service, call, "completed", result="done")
    await ended(http, strict.service, call, "completed", result="done")
    other = await ended(http, strict.service, call, "failed", status=409)
    assert other["code"] == "call_settled"


@pytest.mark.proves("D.271")
async def test_a_denied_call_is_over_and_the_session_goes_on(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session)
    waiting = asyncio.create_task(looked(http, strict.service, call["id"], wait=30))
    await decide(strict, call, Choice.DENIED, reason="Not this customer.")
    denied = await waiting
    assert denied["next"] == "stop"
    assert "Not this customer." in denied["reason"]
    same = await asked(http, strict.service, session)
    assert (same["verdict"], same["next"]) == ("deny", "stop")
    other = await asked(http, strict.service, session, arguments={"order": "B", "cents": 1})
    assert other["next"] == "wait"


@pytest.mark.proves("D.272")
async def test_one_key_is_one_call_whichever_session_asks(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    first, second = await opened(http, strict.service), await opened(http, strict.service)
    calls = await asyncio.gather(
        *(asked(http, strict.service, session, key="order-1") for session in (first, first, second, second, first))
    )
    assert len({call["id"] for call in calls}) == 1
    assert await admin.fetchval("select count(*) from tool_call") == 1
    assert await admin.fetchval("select count(*) from approval_request") == 1
    assert await admin.fetchval("select max(open_approvals) from job") == 1
    for more in ({"arguments": {"order": "other"}}, {"tool": "refunds.other"}, {"risk": "high"}):
        answer = await asked(http, strict.service, first, status=409, key="order-1", **more)
        assert answer["code"] == "call_key_reused"
    stranger = await strict.service_with(Role.MEMBER)
    theirs = await opened(http, stranger)
    # The keys of others are their own: nobody uses up or answers another's.
    own = await asked(http, stranger, theirs, key="order-1")
    assert own["id"] != calls[0]["id"]


@pytest.mark.proves("D.273")
async def test_a_held_session_is_told_so_and_an_ended_one_is_refused(http: httpx.AsyncClient, world: World) -> None:
    session = await opened(http, world.service)
    call = await asked(http, world.service, session)
    await post(http, world.admin, f"/v1/sessions/{session}/pause", reason="look first")
    assert (await asked(http, world.service, session, status=409))["code"] == "external_held"
    intent = {"input_hash": call["input_hash"]}
    held = await post(http, world.service, f"/v1/calls/{call['id']}/intent", status=409, **intent)
    assert held["code"] == "external_held"
    shown = await looked(http, world.service, call["id"])
    assert (shown["held"], shown["next"]) == (True, "wait")
    ending = await post(http, world.service, f"/v1/sessions/{session}/complete", status=409)
    assert ending["code"] in ("calls_open", "external_held")
    waiting = asyncio.create_task(looked(http, world.service, call["id"], wait=30))
    await post(http, world.admin, f"/v1/sessions/{session}/resume")
    assert (await waiting)["next"] == "begin"
    begun = await post(http, world.service, f"/v1/calls/{call['id']}/intent", **intent)
    assert begun["next"] == "run"
    await post(http, world.admin, f"/v1/sessions/{session}/terminate", reason="enough")
    assert (await asked(http, world.service, session, status=409))["code"] == "external_over"
    # It happened, whatever somebody decided meanwhile.
    await ended(http, world.service, call, "completed", result=1)
    assert (await looked(http, world.service, call["id"]))["status"] == "completed"


@pytest.mark.proves("D.273")
async def test_what_waits_ends_with_its_session(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session)
    waiting = asyncio.create_task(looked(http, strict.service, call["id"], wait=30))
    await post(http, strict.admin, f"/v1/jobs/{call['job_id']}/cancel", reason="stop")
    over = await waiting
    assert (over["next"], over["status"]) == ("stop", "rejected")
    with pytest.raises(CortexError):
        await decide(strict, call)


@pytest.mark.proves("D.273")
async def test_a_session_is_completed_when_nothing_is_open(http: httpx.AsyncClient, world: World) -> None:
    session = await opened(http, world.service)
    call = await asked(http, world.service, session, dispatch=True)
    path = f"/v1/sessions/{session}/complete"
    assert (await post(http, world.service, path, status=409))["code"] == "calls_open"
    await ended(http, world.service, call, "completed")
    done = await post(http, world.service, path, result={"refunds": 1})
    assert done["status"] == "TERMINATED"
    assert (await post(http, world.service, path))["status"] == "TERMINATED"
    job = (await http.get(f"/v1/jobs/{call['job_id']}", headers=world.service.headers)).json()
    assert (job["status"], job["result"]) == ("COMPLETED", {"refunds": 1})
    assert (await asked(http, world.service, session, status=409))["code"] == "external_over"
    assert (await post(http, world.service, f"/v1/sessions/{session}/fail", status=409))["code"] == "external_over"
    gone = await opened(http, world.service)
    failed = await post(http, world.service, f"/v1/sessions/{gone}/fail", error="out of memory")
    assert failed["status"] == "TERMINATED"


@pytest.mark.proves("D.274")
async def test_edited_arguments_must_be_acknowledged(http: httpx.AsyncClient, strict: World) -> None:
    schema = {"type": "object", "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}}}
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session, parameters=schema)
    with pytest.raises(CortexError) as wrong:
        await decide(strict, call, arguments={"order": 7})
    assert wrong.value.code == "edit_invalid"
    await decide(strict, call, arguments={"order": "A-1", "cents": 100})
    path = f"/v1/calls/{call['id']}/intent"
    old = await post(http, strict.service, path, status=409, input_hash=call["input_hash"])
    assert old["code"] == "arguments_changed"
    now = await looked(http, strict.service, call["id"])
    assert now["edited"]
    assert now["arguments"] == {"order": "A-1", "cents": 100}
    begun = await post(http, strict.service, path, input_hash=now["input_hash"])
    assert begun["next"] == "run"
    assert begun["arguments"]["cents"] == 100
    plain = await asked(http, strict.service, session, arguments={"order": "B"})
    with pytest.raises(CortexError) as unknown:
        await decide(strict, plain, arguments={"order": "C"})
    assert unknown.value.code == "schema_unknown"


@pytest.mark.proves("D.275")
async def test_what_policies_allowed_before_is_asked_again(http: httpx.AsyncClient, world: World, db: Database) -> None:
    session = await opened(http, world.service)
    one, two = [await asked(http, world.service, session, arguments={"n": n}) for n in (1, 2)]
    assert one["next"] == two["next"] == "begin"
    rule = 'policies: [{name: ask, target: "refunds.*", effect: requires_approval}]'
    await apply_policies(db, world.admin.actor, rule)
    path = "/v1/calls/{}/intent"
    again = await post(http, world.service, path.format(one["id"]), input_hash=one["input_hash"])
    assert (again["status"], again["next"], again["verdict"]) == ("awaiting", "wait", "requires_approval")
    await apply_policies(db, world.admin.actor, 'policies: [{name: no, target: "refunds.*", effect: deny}]')
    never = await post(http, world.service, path.format(two["id"]), input_hash=two["input_hash"])
    assert (never["status"], never["next"]) == ("rejected", "stop")
    # Approved before it was forbidden: the policy of now has the last word.
    await decide(world, again)
    late = await post(http, world.service, path.format(one["id"]), input_hash=one["input_hash"])
    assert (late["status"], late["next"]) == ("rejected", "stop")


@pytest.mark.proves("D.278")
async def test_that_it_only_reads_is_a_claim(http: httpx.AsyncClient, strict: World, db: Database) -> None:
    session = await opened(http, strict.service)
    claimed = await asked(http, strict.service, session, tool="orders.list", read_only=True)
    assert claimed["verdict"] == "requires_approval"
    trusting = 'policies: [{name: reads, target: "orders.*", effect: allow, when: "read_only"}]'
    await apply_policies(db, strict.admin.actor, trusting)
    arguments = {"page": 2}
    believed = await asked(http, strict.service, session, tool="orders.list", read_only=True, arguments=arguments)
    assert believed["verdict"] == "allow"
    assert believed["on_uncertain"] == "retry_with_key"
    acting = await asked(http, strict.service, session, tool="orders.list", arguments=arguments)
    assert acting["verdict"] == "requires_approval"


@pytest.mark.proves("D.279")
async def test_a_standing_approval_covers_calls_elsewhere(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    first = await asked(http, strict.service, session)
    await decide(strict, first, standing={"calls": 1})
    covered = await asked(http, strict.service, session, arguments={"order": "B"}, dispatch=True)
    assert (covered["verdict"], covered["next"]) == ("allow", "run")
    assert covered["rule"].startswith("standing:")
    used_up = await asked(http, strict.service, session, arguments={"order": "C"}, dispatch=True)
    assert used_up["verdict"] == "requires_approval"


@pytest.mark.proves("D.279")
async def test_an_approval_that_nobody_gave_sends_nothing(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session)
    id = UUID(call["id"])
    await admin.execute("update tool_call set status = 'approved' where id = $1", id)
    await admin.execute(
        "insert into approval_grant (org_id, call_id, approval_id, tool_digest, input_hash, created_at, expires_at)"
        " select org_id, id, $2, tool_digest, input_hash, now(), now() + interval '1 day' from tool_call where id = $1",
        id, UUID(call["approval_id"]),
    )  # fmt: skip
    forged = await post(http, strict.service, f"/v1/calls/{id}/intent", input_hash=call["input_hash"])
    assert (forged["status"], forged["next"]) == ("rejected", "stop")
    assert "no receipt" in forged["reason"]


@pytest.mark.proves("D.284")
async def test_a_service_asks_and_never_decides(http: httpx.AsyncClient, strict: World, other: World) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session)
    with pytest.raises(CortexError) as refused:
        await decide(strict, call, by=strict.service)
    assert refused.value.code == "not_a_person"
    foreign = await http.get(f"/v1/calls/{call['id']}", headers=other.service.headers)
    assert foreign.status_code == 404
    assert foreign.json()["code"] == "call_not_found"
    guest = await strict.person(Role.GUEST)
    denied = await http.post(f"/v1/sessions/{session}/calls", json={"tool": "a.b"}, headers=guest.headers)
    assert denied.status_code == 403
    usual = await http.post("/v1/sessions", json={"agent": "deployer"}, headers=strict.service.headers)
    wrong = await asked(http, strict.service, usual.json()["id"], status=409)
    assert wrong["code"] == "not_external"
    text = {"text": "hello"}
    said = await http.post(f"/v1/sessions/{session}/messages", json=text, headers=strict.admin.headers)
    assert said.status_code == 409
    assert said.json()["code"] == "external_session"
    job = {"agent": "deployer", "session_id": session}
    submitted = await http.post("/v1/jobs", json=job, headers=strict.admin.headers)
    assert submitted.status_code == 409
    assert submitted.json()["code"] == "external_session"


@pytest.mark.proves("D.284")
@pytest.mark.parametrize(
    "more",
    [
        {"tool": "Refunds"}, {"tool": "a" * 65}, {"arguments": [1]}, {"arguments": {"x": "y" * 300_000}},
        {"timeout_seconds": 0}, {"timeout_seconds": 86_401}, {"key": "with space"}, {"key": "k" * 256},
        {"risk": "none"}, {"on_uncertain": "hope"}, {"unknown": 1}, {"sender": ""}, {"says": "s" * 2001},
    ],
    ids=str,
)  # fmt: skip
async def test_bad_input_changes_nothing(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, more: dict[str, Any]
) -> None:
    session = await opened(http, world.service)
    answer = await asked(http, world.service, session, status=422, **more)
    assert answer["hint"]
    assert await admin.fetchval("select count(*) from tool_call") == 0


@pytest.mark.proves("D.270")
@pytest.mark.parametrize("dispatch", [False, True])
async def test_the_answer_to_a_new_call_is_what_reading_it_shows(
    http: httpx.AsyncClient, world: World, dispatch: bool
) -> None:
    await apply_policies(world.db, world.admin.actor, MAIL_DENIED)
    session = await opened(http, world.service)
    parameters = {"type": "object"}
    for number, tool in enumerate(("refunds.create", "mail.send")):
        more: dict[str, Any] = {
            "key": f"k-{number}",
            "says": "why",
            "risk": "low",
            "timeout_seconds": 7.5,
            "parameters": parameters,
        }
        call = await asked(http, world.service, session, tool=tool, dispatch=dispatch, sender="s", **more)
        seen = await looked(http, world.service, call["id"])
        passing = {"next": None, "reason": None, "now": None}
        assert call | passing == seen | passing
        assert call["next"] == ("stop" if tool == "mail.send" else "run" if dispatch else "begin")
        assert call["step_index"] == number


@pytest.mark.proves("D.270")
async def test_a_batch_is_answered_call_by_call(http: httpx.AsyncClient, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, MAIL_DENIED)
    session = await opened(http, world.service)
    await asked(http, world.service, session, key="used", arguments={"order": "B"})
    calls = [
        {"tool": "refunds.create", "arguments": REFUND, "key": "a", "dispatch": True},
        {"tool": "mail.send", "key": "b"},
        {"tool": "refunds.create", "arguments": REFUND, "key": "used"},
        {"tool": "refunds.create", "arguments": {"order": "C"}, "key": "c"},
    ]
    path = f"/v1/sessions/{session}/calls/batch"
    first = await post(http, world.service, path, calls=calls)
    answers = first["answers"]
    assert [answer["call"] and answer["call"]["next"] for answer in answers] == ["run", "stop", None, "begin"]
    assert answers[2]["error"]["code"] == "call_key_reused"
    assert [answer["error"] is None for answer in answers] == [True, True, False, True]
    again = await post(http, world.service, path, calls=calls)
    ids = [[answer["call"] and answer["call"]["id"] for answer in each["answers"]] for each in (first, again)]
    assert ids[0] == ids[1], "repeated, it makes no second call"
    assert again["answers"][0]["call"]["next"] == "wait", "whoever has no name of the try is not its sender"


@pytest.mark.proves("D.270")
@pytest.mark.parametrize(
    "calls", [[], [{"tool": "a.b"}], [{"tool": "a.b", "key": f"k{n}"} for n in range(21)], [{"tool": "A", "key": "k"}]]
)
async def test_a_batch_that_cannot_be_repeated_is_refused(
    http: httpx.AsyncClient, world: World, calls: list[dict[str, Any]]
) -> None:
    session = await opened(http, world.service)
    await post(http, world.service, f"/v1/sessions/{session}/calls/batch", calls=calls, status=422)
    page = (await http.get(f"/v1/calls?session_id={session}", headers=world.service.headers)).json()
    assert page["items"] == []
