"""Standing approvals through every door: REST, the client, the command line, the dashboard."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, StandingDraft
from cortex_plane.client import Client
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from tests.approvals.test_http_approvals import Door
from tests.cli.test_cli import Shell
from tests.cli.test_cli_jobs import Live, _serving
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, pending_soon, ship, shown, waiting
from tests.fixtures.people import World, apply_policies
from tests.fixtures.stages import PATIENT
from tests.fixtures.standing_approvals import policy, standing_of, standing_world
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import make_agent, submit, turn, until, working
from tests.http.test_http_bad_input import problem

NOBODY = "01936f3a-0000-7000-8000-000000000000"


@pytest_asyncio.fixture
async def org(db: Database) -> World:
    return await standing_world(db)


@pytest.mark.proves("D.168")
async def test_a_round_trip_over_http(org: World, http: httpx.AsyncClient) -> None:
    shipping, door = Shipping(), Door(http, org.admin)
    job, _ = await waiting(org, shipping, ship("1.0"), after=[turn(ship("2.0")), turn(ship("3.0"))])
    card = await door.card(job)
    assert card["approval"]["standing"] is True, "the card says that it may be given"
    answer = await door.decide(card, standing={"calls": 1, "seconds": 7200})
    assert answer.status_code == 200, answer.text
    (given,) = (await door.get("standing-approvals", session_id=card["approval"]["session_id"]))["items"]
    assert (given["tool_name"], given["max_calls"], given["used_calls"], given["usable"]) == ("ship", 1, 0, True)
    assert given["required"]["rule"] == card["approval"]["rule"]
    async with working(org.db, shipping.app):
        await until(org, job, JobStatus.WAITING_FOR_APPROVAL)
    assert shipping.shipped == ["1.0 to production", "2.0 to production"]
    after = await door.get(f"standing-approvals/{given['id']}")
    assert (after["used_calls"], after["usable"], after["why_not"]) == (1, False, "all its calls are used")
    assert (await door.get("standing-approvals", active="true"))["items"] == []
    revoked = await door.post(f"standing-approvals/{given['id']}/revoke", {"reason": "done"})
    assert (revoked.status_code, revoked.json()["revoked_by"]) == (200, "Ada")
    problem(await door.post(f"standing-approvals/{NOBODY}/revoke", {}), 404, "standing_approval_not_found")


@pytest.mark.proves("D.166")
@pytest.mark.parametrize(
    ("standing", "status", "code"),
    [
        ({}, 422, "standing_unbounded"),
        ({"calls": 0}, 422, "invalid_request"),
        ({"calls": 1001}, 422, "invalid_request"),
        ({"calls": "2"}, 422, "invalid_request"),
        ({"seconds": 604_801}, 422, "invalid_request"),
        ({"condition": "args.version =="}, 422, "invalid_condition"),
        ({"condition": "\ud800"}, 422, "invalid_request"),
        ({"until": "forever"}, 422, "invalid_request"),
        ("yes", 422, "invalid_request"),
    ],
)
async def test_bad_bounds_decide_nothing(
    org: World, http: httpx.AsyncClient, standing: Any, status: int, code: str
) -> None:
    job, (asked,) = await waiting(org, Shipping())
    door = Door(http, org.admin)
    card = await door.card(job)
    if isinstance(standing, dict) and standing.get("condition") == "\ud800":
        seen = card["approval"]
        raw = (
            f'{{"decision":"approved","version":{seen["version"]},"input_hash":"{seen["input_hash"]}",'
            '"standing":{"condition":"\\ud800"}}'
        )
        headers = {**org.admin.headers, "Content-Type": "application/json"}
        answer = await http.post(f"/v1/approvals/{asked.id}/decide", content=raw, headers=headers)
        assert answer.status_code == status
    else:
        problem(await door.decide(card, standing=standing), status, code)
    assert (await shown(org, asked.id)).status is ApprovalStatus.PENDING


async def test_what_a_policy_does_not_allow_is_forbidden(org: World, http: httpx.AsyncClient) -> None:
    await apply_policies(org.db, org.admin.actor, policy(standing="false"))
    job, (asked,) = await waiting(org, Shipping())
    door = Door(http, org.admin)
    refused = problem(await door.decide(await door.card(job), standing={"calls": 1}), 403, "standing_not_allowed")
    assert "leave `standing` out" in refused["hint"]
    assert (await shown(org, asked.id)).status is ApprovalStatus.PENDING


async def test_the_client_gives_lists_and_revokes(org: World, http: httpx.AsyncClient) -> None:
    _, (asked,) = await waiting(org, Shipping())
    async with Client("http://plane", org.admin.secret, transport=http._transport) as plane:
        seen = (await plane.approvals.get(asked.id)).approval
        await plane.approvals.approve(seen, standing=StandingDraft(same_arguments=True))
        (given,) = [item async for item in plane.standing_approvals.list(session_id=asked.session_id)]
        assert given.input_hash == asked.input_hash
        assert (await plane.standing_approvals.get(given.id)) == given
        revoked = await plane.standing_approvals.revoke(given.id, reason="enough")
        assert (revoked.usable, revoked.revocation_reason) == (False, "enough")
        assert [item async for item in plane.standing_approvals.list(active=True)] == []


# The command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def live(urls: Urls, tmp_path: Path) -> Iterator[Live]:
    ready: list[Live] = []
    is_ready, leave = threading.Event(), threading.Event()

    async def main() -> None:
        db = await Database.open(urls.app, max_size=10, vault=Vault(bytes(range(32))))
        world = await standing_world(db)
        async with _serving(db) as url, working(db, Shipping().app, settings=PATIENT):
            names = ("CORTEX_", "DATABASE_")
            environment = {k: v for k, v in os.environ.items() if not k.startswith(names)}
            environment |= {"CORTEX_URL": url, "CORTEX_KEY": world.admin.secret, "COLUMNS": "200"}
            shell = Shell(tmp_path, environment)
            ready.append(Live(asyncio.get_running_loop(), world, shell, asyncio.Event(), asyncio.Event()))
            is_ready.set()
            await asyncio.to_thread(leave.wait)
        await db.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    with capture_logs():
        thread.start()
        try:
            assert is_ready.wait(30)
            yield ready[0]
        finally:
            leave.set()
            thread.join()


def _asked(live: Live) -> Approval:
    async def made() -> Approval:
        agent = await make_agent(live.world, [turn(ship()), turn(ship()), turn(ship("2.0"))], slug="shipper")
        return (await pending_soon(live.world, await submit(live.world, agent)))[0]

    return live.begin(made())()


@pytest.mark.proves("D.168")
def test_a_round_trip_on_the_command_line(live: Live) -> None:
    shell = live.shell
    assert shell.run("standing", "list").stdout == "nothing yet\n"
    asked = _asked(live)
    approve = ("approval", "approve", str(asked.id))
    assert "is not a span" in shell.run(*approve, "--standing-for", "soon", expect=2).stderr
    shell.run(*approve, "--standing-calls", "0", expect=2)
    assert "invalid_condition" in shell.run(*approve, "--standing-when", "args.", expect=2).stderr
    shell.run(*approve, "--standing-for", "8d", expect=2)
    assert live.begin(shown(live.world, asked.id))().status is ApprovalStatus.PENDING
    shell.run(
        *approve, "--standing-calls", "5", "--standing-for", "2h", "--standing-same-arguments",
        "--standing-when", "args.version == '1.0'",
    )  # fmt: skip
    (given,) = shell.many("standing", "list", "--session", str(asked.session_id))
    assert (given["max_calls"], given["condition"]) == (5, "args.version == '1.0'")
    live.begin(pending_soon(live.world, asked.job_id))()  # the call with other arguments asks
    one = shell.one("standing", "show", str(given["id"]))
    assert (one["used_calls"], one["usable"]) == (1, True)
    assert "ship" in shell.run("standing", "list").stdout
    told = shell.run("standing", "revoke", str(given["id"]), "--reason", "enough").stdout
    assert told == "ship is asked about again; it covered 1 call\n"
    assert shell.run("standing", "list").stdout == "nothing yet\n"
    assert "Ada revoked it" in shell.run("standing", "list", "--all").stdout
    assert "standing_approval_not_found" in shell.run("standing", "show", NOBODY, expect=3).stderr


# The dashboard ---------------------------------------------------------------------------------------------------

ASKED = {"standing": "yes", "standing_calls": "3", "standing_seconds": "7200", "standing_same": "yes"}


async def _approved(visitor: Visitor, asked: Approval) -> httpx.Response:
    """The card, then the page that says in words how far the yes goes."""
    confirm = await visitor.decide(asked.id, "approved", **ASKED)
    return await visitor.submit(confirm, f"/approvals/{asked.id}/decide", decision="approved")


@pytest.mark.proves("D.169")
async def test_a_round_trip_in_the_browser(org: World, http: httpx.AsyncClient) -> None:
    _, (asked,) = await waiting(org, Shipping())
    visitor = await Visitor.log_in(http, org)
    bad = await visitor.decide(asked.id, "approved", confirmed="yes", **{**ASKED, "standing_calls": "0"})
    assert bad.status_code == 422
    assert (await shown(org, asked.id)).status is ApprovalStatus.PENDING
    done = await _approved(visitor, asked)
    assert done.status_code == 303, done.text
    given = await standing_of(org, asked.session_id)
    assert (given.max_calls, given.input_hash) == (3, asked.input_hash)
    assert (given.expires_at - given.created_at).total_seconds() == 7200
    page = await visitor.get("/standing")
    assert str(given.id) in page.text
    stranger = await Visitor.log_in(http, org, await org.person(Role.MEMBER, name="Mel"))
    assert str(given.id) not in (await stranger.get("/standing")).text
    assert (await visitor.submit(page, f"/standing/{given.id}/revoke")).status_code == 303
    assert (await standing_of(org, asked.session_id)).revoked_by == "Ada"


@pytest.mark.proves("D.169")
async def test_a_form_that_asks_for_more_than_policy_allows_decides_nothing(
    org: World, http: httpx.AsyncClient
) -> None:
    await apply_policies(org.db, org.admin.actor, policy(standing="false"))
    _, (asked,) = await waiting(org, Shipping())
    visitor = await Visitor.log_in(http, org)
    assert "standing_calls" not in (await visitor.get(f"/approvals/{asked.id}")).text
    forced = await _approved(visitor, asked)
    assert forced.status_code == 403
    assert (await shown(org, asked.id)).status is ApprovalStatus.PENDING
