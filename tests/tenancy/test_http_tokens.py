"""Deciding over REST with a token in the body, and nothing else in the hand."""

from __future__ import annotations

import asyncio
from collections import Counter

import asyncpg
import httpx
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs.credentials import new_approval_token
from cortex_plane.kernel.errors import TooMany
from cortex_plane.kernel.shares import ADDRESSES, FAILURES, Throttle
from tests.fixtures.approvals import Shipping, shown, waiting
from tests.fixtures.credentials import by_token, token_for
from tests.fixtures.people import World
from tests.fixtures.rows import digests
from tests.http.test_http_bad_input import problem


@pytest.mark.proves("D.150")
async def test_a_token_in_the_body_decides_without_a_key(http: httpx.AsyncClient, strict: World) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    answer = await by_token(http, token, reason="fine")
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"] == "OK"
    assert answer.json()["approval"]["resolved_by_name"] == "Ada"
    assert token not in answer.text
    assert (await by_token(http, token)).json()["result"] == "DUPLICATE"
    problem(await by_token(http, token, "denied"), 409, "approval_conflict")
    # A key beside it means nothing, whose ever it is.
    again = await http.post(
        "/v1/approvals/decide",
        json={"token": token, "decision": "approved"},
        headers={"Authorization": "Bearer cortex_key_" + "x" * 43, "Cortex-Org": "nowhere"},
    )
    assert again.json()["result"] == "DUPLICATE"


@pytest.mark.proves("S1.205")
@pytest.mark.parametrize(("path", "decision"), [("approve", "approved"), ("deny", "denied")])
async def test_the_paths_of_spec_1_decide_with_a_token_in_the_body(
    http: httpx.AsyncClient, strict: World, path: str, decision: str
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    for body in ({}, {"token": token, "decision": "approved"}, {"token": ""}):
        problem(await http.post(f"/api/approvals/{path}", json=body), 422, "invalid_request")
    problem(await http.post(f"/api/approvals/{path}", json={"token": new_approval_token()}), 401, "token_unknown")
    answer = await http.post(f"/api/approvals/{path}", json={"token": token, "reason": "as I said"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["result"], answer.json()["approval"]["status"]) == ("OK", decision)
    settled = await shown(strict, approval.id)
    assert (settled.status, settled.resolution_reason) == (decision, "as I said")
    assert (await by_token(http, token, decision)).json()["result"] == "DUPLICATE"
    other = {"approve": "deny", "deny": "approve"}[path]
    problem(await http.post(f"/api/approvals/{other}", json={"token": token}), 409, "approval_conflict")


@pytest.mark.proves("D.151")
async def test_every_bad_token_has_its_answer_and_changes_nothing(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    before = await digests(admin)
    unknown = problem(await by_token(http, new_approval_token()), 401, "token_unknown")
    malformed = problem(await by_token(http, token[:-1]), 401, "token_malformed")
    assert unknown["detail"] != malformed["detail"]
    problem(await by_token(http, token.replace("_1_", "_2_", 1)), 401, "token_version")
    problem(await by_token(http, "let me in"), 401, "not_a_token")
    problem(await by_token(http, token, "perhaps"), 422, "invalid_request")
    problem(await by_token(http, ""), 422, "invalid_request")
    problem(await by_token(http, token, extra=1), 422, "invalid_request")
    problem(await http.post("/v1/approvals/decide", json={"decision": "approved"}), 422, "invalid_request")
    query = await http.post("/v1/approvals/decide", params={"token": token}, json={"decision": "approved"})
    problem(query, 422, "invalid_request")
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        answer = await http.request(method, "/v1/approvals/decide", params={"token": token, "decision": "approved"})
        assert answer.status_code in (401, 404, 405, 422), method
    assert await digests(admin) == before


@pytest.mark.parametrize("verdict", ["approve", "deny"])
@pytest.mark.proves("D.158")
async def test_a_token_in_a_path_decides_nothing_and_is_in_no_log(
    http: httpx.AsyncClient, strict: World, verdict: str
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    with capture_logs() as logs:
        answer = await http.post(f"/api/approvals/{token}/{verdict}")
        elsewhere = await http.post(f"/approvals/{token}/{verdict}")
    body = problem(answer, 410, "token_in_path")
    assert "body" in body["hint"]
    assert elsewhere.status_code in (404, 405)
    for text in (repr(logs), answer.text, elsewhere.text):
        assert token[-30:] not in text
    routes = [line["route"] for line in logs if line["event"] == "request"]
    assert routes[:1] == [f"/api/approvals/{{token}}/{verdict}"]
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING


@pytest.mark.proves("D.156")
async def test_sixteen_clients_with_one_token_hear_of_one_decision(http: httpx.AsyncClient, strict: World) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    answers = await asyncio.gather(*(by_token(http, token) for _ in range(16)))
    assert Counter(answer.json()["result"] for answer in answers) == {"OK": 1, "DUPLICATE": 15}
    decided = {answer.json()["approval"]["resolved_at"] for answer in answers}
    assert len(decided) == 1


@pytest.mark.proves("D.158", "D.595")
async def test_address_that_guesses_is_stopped_and_a_right_token_from_it_is_taken(
    http: httpx.AsyncClient, strict: World
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    statuses = [(await by_token(http, new_approval_token())).status_code for _ in range(FAILURES + 2)]
    assert statuses == [401] * FAILURES + [429, 429]
    stopped = problem(await by_token(http, new_approval_token()), 429, "too_many_failures")
    assert stopped["hint"]
    # Whoever sits behind the same address and has the right one is not shut out.
    assert (await by_token(http, token)).status_code == 200
    assert (await shown(strict, approval.id)).status is ApprovalStatus.APPROVED


# The throttle itself -----------------------------------------------------------------------------------------------


def _is_stopped(throttle: Throttle, host: str) -> bool:
    """Whether one failure more would be refused. It is not counted."""
    before = throttle._buckets.copy()
    try:
        throttle.failed(host)
    except TooMany:
        return True
    finally:
        throttle._buckets = before
    return False


def _fail(throttle: Throttle, host: str, times: int = 1) -> None:
    for _ in range(times):
        throttle.failed(host)


def test_failures_are_forgiven_with_time_and_never_more_than_there_were() -> None:
    now = [1000.0]
    throttle = Throttle(lambda: now[0])
    _fail(throttle, "10.0.0.1", FAILURES)
    assert _is_stopped(throttle, "10.0.0.1")
    assert not _is_stopped(throttle, "10.0.0.2")
    now[0] += 1.9
    assert _is_stopped(throttle, "10.0.0.1")
    now[0] += 0.2
    assert not _is_stopped(throttle, "10.0.0.1")
    now[0] += 10_000
    _fail(throttle, "10.0.0.1", FAILURES - 1)
    assert not _is_stopped(throttle, "10.0.0.1")
    _fail(throttle, "10.0.0.1")
    assert _is_stopped(throttle, "10.0.0.1")


def test_a_network_of_ipv6_counts_as_one() -> None:
    throttle = Throttle()
    for n in range(FAILURES):
        _fail(throttle, f"2001:db8::{n:x}")
    assert _is_stopped(throttle, "2001:db8::ffff")
    assert not _is_stopped(throttle, "2001:db8:0:1::1")


def test_it_remembers_a_bounded_number_of_addresses() -> None:
    throttle = Throttle()
    for n in range(ADDRESSES + 100):
        _fail(throttle, f"host-{n}")
    assert len(throttle._buckets) == ADDRESSES
