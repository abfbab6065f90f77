"""The dashboard where there is much of something: nobody's requests vanish, and no page stops the process."""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Excerpt
from cortex_plane.approvals.verbs import approvals
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.tenancy.model.orgs import Role
from tests.dashboard.test_dashboard_approvals import shown
from tests.fixtures.people import World
from tests.fixtures.stages import held_job
from tests.fixtures.visitors import Visitor, asked, fields_of, open_shop
from tests.fixtures.workers import call, until

COPIES = """
insert into approval_request
select (jsonb_populate_record(r, jsonb_build_object(
    'id', gen_random_uuid(), 'requested_at', r.requested_at + make_interval(secs => n),
    'deadline', r.deadline + make_interval(secs => n)) || $2)).*
from approval_request r, generate_series(1, $3::integer) n
where r.id = $1
returning id
"""


async def copies(admin: asyncpg.Connection, of: UUID, count: int = 1, **change: Any) -> list[UUID]:
    """More requests like this one, each a second younger and due a second later."""
    await admin.execute("drop index if exists uq_approval_request_pending")
    await admin.execute("set session_replication_role = replica")
    try:
        return [row["id"] for row in await admin.fetch(COPIES, of, json.dumps(change), count)]
    finally:
        await admin.execute("set session_replication_role = origin")


# The inbox -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.74")
async def test_what_i_may_decide_does_not_vanish_behind_what_others_decide(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with open_shop(strict):
        mine = await asked(strict, slug="mine")
        pat = await strict.person(Role.MEMBER, name="Pat")
        theirs = await asked(strict, by=pat, slug="theirs")
    await copies(admin, theirs.id, 120)
    visitor = await Visitor.log_in(http, strict)
    page = await visitor.get("/")
    assert page.text.index("For you") < page.text.index(f"row-{mine.id}") < page.text.index("Waiting for others")
    assert "One request waits for your decision." in shown(page)
    assert "121 in all" in shown(page)
    assert page.text.count('<li class="row') == 101
    assert 'href="/?page=1"' in page.text
    assert "21 more" in shown(page)
    rest = await visitor.get("/?page=1")
    assert rest.text.count('<li class="row') == 21
    assert "More urgent" in shown(rest)
    assert "All clear" not in shown(await visitor.get("/?page=9"))
    for strange in ("-1", "x", "99999999999999999999"):
        assert str(mine.id) in (await visitor.get(f"/?page={strange}")).text


@pytest.mark.proves("D.74")
async def test_the_most_urgent_of_many_come_first_and_no_row_moves_when_more_come(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with open_shop(strict):
        first = await asked(strict)
    await copies(admin, first.id, 130)
    visitor = await Visitor.log_in(http, strict)
    page = await visitor.get("/")
    rows = re.findall(r'id="row-([0-9a-f-]+)"', page.text)
    assert rows[0] == str(first.id)
    assert len(rows) == 100
    assert "131 requests wait for your decision." in shown(page)
    state = fields_of(re.sub(r' data-waiting="\d+"', "", page.text).replace(
        '<form id="state" hidden>', '<form action="state">'), "state")  # fmt: skip
    assert first.deadline is not None
    soon = first.requested_at.replace(year=first.requested_at.year + 1)
    await copies(admin, first.id, 40, requested_at=soon.isoformat(), deadline=first.requested_at.isoformat())
    part = await visitor.get("/inbox/live?" + str(httpx.QueryParams(state)))
    assert "40 new requests" in shown(part)
    assert re.findall(r'id="row-([0-9a-f-]+)"', part.text) == rows


async def test_the_inbox_looks_at_500_requests_at_a_time(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with open_shop(strict):
        mine = await asked(strict, slug="mine")
        theirs = await asked(strict, by=await strict.person(Role.MEMBER, name="Pat"), slug="theirs")
    (late,) = await copies(admin, mine.id, deadline=(mine.requested_at + timedelta(days=900)).isoformat())
    await copies(admin, theirs.id, 503)
    visitor = await Visitor.log_in(http, strict)
    page = await visitor.get("/")
    assert "1+ requests wait for your decision." in shown(page)
    assert "499+ in all" in shown(page)
    assert 'data-waiting="1+"' in page.text
    assert str(late) not in page.text
    further = re.search(r'href="(/\?after=[0-9a-f-]+)"', page.text)
    assert further
    rest = await visitor.get(further[1])
    assert "One request waits for your decision." in shown(rest)
    assert f"row-{late}" in rest.text
    assert rest.text.count('<li class="row') == 1 + 505 - 500
    assert "More urgent" not in shown(rest)
    assert "Most urgent" in shown(rest)
    listed = await approvals.list_inbox(strict.db, strict.admin.actor, 1000)
    more = await approvals.list_inbox(strict.db, strict.admin.actor, 1000, after=listed.further)
    ids = [a.id for a in [*listed.mine, *listed.others, *more.mine, *more.others]]
    assert len(ids) == len(set(ids)) == 506
    assert more.further is None


@pytest.mark.proves("D.74")
async def test_the_inbox_asks_the_same_questions_as_a_decision(strict: World, admin: asyncpg.Connection) -> None:
    """Whom the query counts as somebody who may decide, the one rule of deciding does too, and nobody else."""
    pat = await strict.person(Role.MEMBER, name="Pat", clearance=3)
    people = [
        strict.admin,
        pat,
        await strict.person(Role.APPROVER, clearance=3),
        await strict.person(Role.OPERATOR, Role.GUEST),
        await strict.person(Role.STEWARD),
        await strict.person(Role.GUEST),
        strict.service,
    ]
    async with open_shop(strict):
        one = await asked(strict, by=pat)
    ids = [str(person.actor.user_account_id) for person in people[:3]]
    terms = itertools.product(
        (True, False), ([], ["admin"], ["approver", "guest"]), ([], ids[1:]), (0, 3),
        (True, False), (None, ids[0], ids[1]),
    )  # fmt: skip
    for owner, roles, members, clearance, self_approval, whose in terms:
        approvers = {"owner": owner, "roles": roles, "members": members}
        change: dict[str, Any] = {
            "approvers": approvers,
            "required_clearance": clearance,
            "self_approval": self_approval,
        }
        await copies(admin, one.id, **change, owner_id=whose, causes=[ids[1]])
    await copies(admin, one.id, kind="uncertain_effect", deadline=None, next_action_at=None)
    for person in people:
        listed = await every(strict, person.actor)
        found = await approvals.list_inbox(strict.db, person.actor, 1000)
        may = {item.id for item in listed if item.may_decide}
        assert {item.id for item in found.mine} == may, person.actor.roles
        assert {item.id for item in found.others} == {item.id for item in listed} - may
        assert (found.mine_total, found.others_total) == (len(may), len(listed) - len(may))
        assert all(item.may_decide for item in found.mine)


async def every(world: World, actor: Any) -> list[Approval]:
    items: list[Approval] = []
    position = None
    while True:
        page = await approvals.list_approvals(world.db, actor, position, 200, status=ApprovalStatus.PENDING)
        items += page.items
        position = page.next
        if position is None:
            return items


async def test_an_uncertain_effect_is_the_most_urgent(world: World) -> None:
    held = await held_job(world)
    found = await approvals.list_inbox(world.db, world.admin.actor, 10)
    assert [item.job_id for item in found.mine] == [held.job]
    steward = replace(world.admin.actor, roles=frozenset({Role.STEWARD}))
    assert [item.job_id for item in (await approvals.list_inbox(world.db, steward, 10)).others] == [held.job]


@pytest.mark.proves("D.74")
async def test_a_row_of_large_arguments_carries_their_beginning(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict, call("order", item="<b>" + "x" * 200_000))
        found = await approvals.list_inbox(strict.db, strict.admin.actor, 10)
        (row,) = found.mine
        assert isinstance(row.arguments, Excerpt)
        assert len(row.arguments) == 2000
        visitor = await Visitor.log_in(http, strict)
        page = await visitor.get("/")
        assert len(page.text) < 20_000
        assert "<b>" not in page.text
        assert '{"item": "<b>xxx' in shown(page)
        assert (await visitor.decide(request.id, "denied")).status_code == 303
        (ended,) = await approvals.list_settled(strict.db, strict.admin.actor, 10)
        assert (ended.id, len(ended.arguments)) == (request.id, 2000)


# The card ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.75")
async def test_a_card_of_many_values_is_whole_and_costs_nothing_while_it_is_read(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    many = json.dumps({"item": [f"<{n}>" for n in range(30_000)]})
    await admin.execute("set session_replication_role = replica")
    await admin.execute("update approval_request set arguments = $2::jsonb where id = $1", request.id, many)
    visitor = await Visitor.log_in(http, strict)
    began = time.process_time()
    page = await visitor.get(f"/approvals/{request.id}")
    assert time.process_time() - began < 2
    assert "&lt;29999&gt;" in page.text
    assert "<29999>" not in page.text
    assert "30004 lines, scroll to read them all" in shown(page)
    seen = re.search(r'name="seen" value="(\w+)"', page.text)
    assert seen
    began = time.process_time()
    for _ in range(10):
        part = await visitor.get(f"/approvals/{request.id}/live?version=1&seen={seen.group(1)}")
        assert part.status_code == 204
    assert time.process_time() - began < 1


async def test_a_change_is_told_once(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        draft = JobDraft(agent="shopper", session_id=request.session_id, payload={"text": "again"})
        joined = await jobs.submit(strict.db, strict.admin.actor, draft)
        await until(strict, joined.id, JobStatus.WAITING_FOR_APPROVAL)
    visitor = await Visitor.log_in(http, strict)
    path = f"/approvals/{request.id}/live?version=1&seen=x"
    told = await visitor.get(path)
    assert '<input type="hidden" name="told" value="2">' in told.text
    assert (await visitor.get(f"{path}&told=2")).status_code == 204
    assert (await visitor.get(f"{path}&told=1")).status_code == 200, "that was an older change"


async def test_whoever_tries_in_vain_does_not_make_a_card_endless(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    await admin.execute(
        "insert into approval_event (org_id, approval_id, event_type, payload, created_at)"
        " select $1, $2, 'refused', jsonb_build_object('reason', 'try ' || n), plane_now()"
        " from generate_series(1, 300) n",
        strict.org_id, request.id,
    )  # fmt: skip
    visitor = await Visitor.log_in(http, strict)
    page = shown(await visitor.get(f"/approvals/{request.id}"))
    assert page.count("A decision was refused") == 100
    assert "“try 300”" in page
    assert page.index("“try 299”") < page.index("“try 300”")


# The page of a job ---------------------------------------------------------------------------------------------------

STEPS = """
insert into step
select (jsonb_populate_record(s, jsonb_build_object('step_index', n))).*
from step s, generate_series(1, 119) n
where s.job_id = $1 and s.step_index = 0
"""


@pytest.mark.proves("D.78")
async def test_a_long_job_is_shown_from_its_end_page_by_page(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    await admin.execute("set session_replication_role = replica")
    await admin.execute(STEPS, request.job_id)
    await admin.execute("update job set step_index = 119 where id = $1", request.job_id)
    visitor = await Visitor.log_in(http, strict)
    path = f"/jobs/{request.job_id}"

    def steps(page: httpx.Response) -> list[int]:
        return [int(n) for n in re.findall(r'id="step-(\d+)"', page.text)]

    newest = await visitor.get(path)
    assert steps(newest) == list(range(70, 120))
    assert f'href="{path}?before=70#steps-title"' in newest.text
    older = await visitor.get(f"{path}?before=70")
    assert steps(older) == list(range(20, 70))
    assert "The newest steps" in shown(older)
    state = fields_of(older.text.replace('<form id="state" hidden>', '<form action="state">'), "state")
    assert (await visitor.get(f"{path}/live?{httpx.QueryParams(state)}")).status_code == 204
    oldest = await visitor.get(f"{path}?before=20")
    assert 0 in steps(oldest)
    assert "Older steps" not in shown(oldest)
    assert steps(await visitor.get(f"{path}?before=x")) == steps(newest)


@pytest.mark.proves("D.75", "D.78")
async def test_what_a_step_sent_is_cut_on_the_jobs_page_and_whole_on_its_own(
    http: httpx.AsyncClient, strict: World
) -> None:
    tail = "the very last word"
    async with open_shop(strict):
        request = await asked(strict, call("order", item="<b>" * 40_000 + tail))
    visitor = await Visitor.log_in(http, strict)
    path = f"/jobs/{request.job_id}"
    page = await visitor.get(path)
    assert tail not in page.text
    assert len(page.text) < 60_000
    assert f'<a href="{path}/steps/1">Open all of it</a>' in page.text
    whole = await visitor.get(f"{path}/steps/1")
    assert tail in whole.text
    assert "<b>" not in whole.text
    for strange in ("0", "2", "x", "-1"):
        assert (await visitor.get(f"{path}/steps/{strange}")).status_code == 404
    stranger = await Visitor.log_in(http, strict, await strict.person(Role.GUEST))
    assert (await stranger.get(f"{path}/steps/1")).status_code == 404
