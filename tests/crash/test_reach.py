"""Killed at every statement of a vote, a delegation, an escalation, a token, a link: all of it happened, or nothing did.

What "all of it" is says a process that nobody kills: whoever dies leaves the request as it was, or just as that one left it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from signal import SIGKILL
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from benchmarks.world import World as Outside

from cortex_plane.approvals.model.approvals import Approval, ApprovalDecision, Channel, Choice, DelegationDraft
from cortex_plane.approvals.model.credentials import TokenDecision
from cortex_plane.approvals.verbs import approvals, credentials, decisions
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.model.orgs import AbsenceDraft, Role
from cortex_plane.tenancy.verbs import orgs
from cortex_plane.worker.notifier import Notifier
from tests.approvals.approval_racer import follow
from tests.channels.behaviour import PUBLIC_URL, drain, link
from tests.channels.postbox import Postbox, connect
from tests.conftest import Urls
from tests.crash.outcomes import require_clean
from tests.crash.points import (
    each,
    every_third_statement,
    extents,
    last_transaction,
    naming,
    without_statements_after,
    worth_a_try,
)
from tests.crash.stage import Run, Stage
from tests.crash.test_approvals import _asked, _promises, _submit, _waits
from tests.crash.tools import Kind, act_name
from tests.crash.workers import WorkerProcess, Workers
from tests.fixtures.approvals import shown
from tests.fixtures.credentials import links_for, token_for
from tests.fixtures.people import Person, World, apply_policies

POLICY = """
policies:
  - {{name: ask, target: act_with_key, effect: requires_approval, template: dev_review, approvers: {{roles: [approver]}},
     timeout: 1d, escalate_before: 12h, escalate_to: [{{roles: [operator]}}, {{roles: [admin]}}], quorum: {quorum},
     standing: {standing}}}
  - {{name: rest, target: "*", effect: allow}}
"""


@dataclass
class Reaching:
    stage: Stage
    bea: Person
    cal: Person
    dan: Person


@pytest_asyncio.fixture
async def reaching(
    urls: Urls, strict: World, admin: asyncpg.Connection, outside: Outside, workers: Workers
) -> AsyncIterator[Reaching]:
    """Two approvers and somebody who could stand in, each with an address; nobody sends yet."""
    people, way = [], await connect(strict)
    for name, role in (("Bea", Role.APPROVER), ("Cal", Role.APPROVER), ("Dan", Role.OPERATOR)):
        people.append(await strict.person(role, name=name))
        await link(admin, strict, way, people[-1], f"{name.lower()}@example.com")
    async with Stage(urls.app, strict, admin, outside, workers).playing() as stage:
        yield Reaching(stage, *people)


# All of it or nothing ------------------------------------------------------------------------------------------

PARTS = {
    "request": """
        select status, version, escalation_level, delegated, approvers, next_action_at is null, resolved_by_name, resolved_via
        from approval_request where id = $1""",
    "votes": """
        select member, decision, version, channel from approval_vote where approval_id = $1 order by created_at""",
    "events": "select event_type, actor, channel from approval_event where approval_id = $1 order by id",
    "hops": "select from_member, to_member, automatic from approval_delegation where approval_id = $1 order by id",
    "tokens": """
        select u.display_name, t.used_at is not null from approval_token t join user_account u on u.id = t.user_account_id
        where t.approval_id = $1 order by 1""",
    "grants": "select consumed_at is null from approval_grant where approval_id = $1",
    "receipts": "select length(signature) from approval_receipt where approval_id = $1",
    "standing": "select max_calls, granted_by from standing_approval where approval_id = $1",
    "messages": "select address, desired_version from notification where approval_id = $1 order by address",
    "job": """
        select j.status, j.open_approvals, j.runnable_at is not null from job j join approval_request r on r.job_id = j.id
        where r.id = $1""",
    "trail": """
        select a.action from audit_entry a join approval_request r on r.session_id = a.session_id where r.id = $1
        order by a.seq""",
    "told": """
        select e.type from event e join approval_request r on r.session_id = e.session_id where r.id = $1
        order by e.seq""",
}


async def _everything(stage: Stage, asked: Approval) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [tuple(row) for row in await stage.rows(query, asked.id)] for name, query in PARTS.items()}


@dataclass(frozen=True)
class Deed:
    """What a process does to a request before it is killed."""

    verb: str
    """Of deciders.py."""
    changes: set[str]
    """Which parts are others when it is done."""
    more: dict[str, Any] = field(default_factory=dict)
    voted: bool = False
    """Bea has said yes before."""
    quorum: int = 2
    again: str = "DUPLICATE"
    """What whoever does it a second time is told."""


ENDS = {"request", "votes", "events", "receipts", "grants", "messages", "job", "trail", "told"}
DEEDS = {
    "a vote": Deed("decide", {"votes", "events", "messages", "trail", "told", "tokens"}),
    "the last vote": Deed("decide", ENDS | {"tokens"}, voted=True),
    "the last vote by token": Deed("decide_by_token", ENDS | {"tokens"}, voted=True),
    "the last vote by link": Deed("decide_by_link", ENDS | {"tokens"}, voted=True),
    "a vote by token": Deed("decide_by_token", {"votes", "events", "messages", "trail", "told", "tokens"}),
    "a delegation": Deed(
        "delegate", {"request", "hops", "events", "messages", "trail", "told"}, again="delegated_away"
    ),
    "an escalation": Deed("act_when_due", {"request", "events", "messages", "trail", "told"}, again="nothing"),
    "a standing approval": Deed("decide", ENDS | {"tokens", "standing"}, more={"standing": 3}, quorum=1),
}  # fmt: skip


@dataclass
class Asked:
    """A request, and what its messages carried."""

    run: Run
    approval: Approval
    token: str
    link: str


async def _ask(reaching: Reaching, deed: Deed, label: str) -> Asked:
    stage = reaching.stage
    run = await _submit(stage, Kind.WITH_KEY, "a", label)
    (approval,) = await _waits(stage, run)
    token = await token_for(stage.world, approval.id, reaching.cal.actor)
    address = (await links_for(stage.world, approval, reaching.cal))[Choice.APPROVED]
    if deed.voted:
        await _yes(reaching, approval, reaching.bea)
    if deed.verb == "act_when_due":
        await stage.change(ONE_LEVEL, approval.id)
    return Asked(run, approval, token, address)


FREE = "select 1 from approval_request where id = $1 for no key update skip locked"
ONE_LEVEL = "update approval_request set escalate_at[1] = plane_now(), next_action_at = plane_now() where id = $1"


async def _yes(reaching: Reaching, approval: Approval, by: Person) -> str:
    decision = ApprovalDecision(decision=Choice.APPROVED, version=approval.version, input_hash=approval.input_hash)
    world = reaching.stage.world
    return (await decisions.decide(world.db, by.actor, approval.id, decision, Channel.API)).result.value


async def _process(reaching: Reaching, deed: Deed, asked: Asked, **more: Any) -> WorkerProcess:
    stage, approval = reaching.stage, asked.approval
    arguments = {
        "secret": reaching.cal.secret, "org": str(stage.world.org_id), "approval": str(approval.id),
        "version": approval.version, "input_hash": approval.input_hash, "choice": Choice.APPROVED,
        "token": asked.token, "link": asked.link, "to": str(reaching.dan.member_id), **deed.more,
    }  # fmt: skip
    return await stage._workers.start(stage.url, asked.run.app, verb=deed.verb, arguments=arguments, **more)


async def _again(reaching: Reaching, deed: Deed, asked: Asked) -> str:
    """Whoever lost the answer does it once more."""
    world, approval = reaching.stage.world, asked.approval
    try:
        match deed.verb:
            case "decide_by_token":
                given = TokenDecision(token=asked.token, decision=Choice.APPROVED)
                return (await credentials.decide_by_token(world.db, given)).result.value
            case "decide_by_link":
                return await follow(world.db, asked.link)
            case "delegate":
                draft = DelegationDraft(to=reaching.dan.member_id)
                await approvals.delegate(world.db, reaching.cal.actor, approval.id, draft)
                return "OK"
            case "act_when_due":
                actor = scheduler_actor(world.org_id, new_id(), "the next one")
                acted = await decisions.act_when_due(world.db, actor, approval.id)
                return "OK" if acted and acted.what == "escalated" else "nothing"
            case _:
                return await _yes(reaching, approval, reaching.cal)
    except CortexError as error:
        return error.code


async def _finish(reaching: Reaching, asked: Asked) -> None:
    """Whoever may still vote does, and what was approved happens once."""
    stage = reaching.stage
    for by in (reaching.bea, reaching.cal, reaching.dan):
        details = await approvals.get_approval(stage.world.db, by.actor, asked.approval.id)
        if details.approval.may_decide:
            await _yes(reaching, details.approval, by)
    assert (await shown(stage.world, asked.approval.id)).status == "approved"
    await stage.rescued(asked.run)


@extents
@pytest.mark.proves("D.201")
async def test_killed_at_every_statement(reaching: Reaching, whole: bool) -> None:
    # What a standing approval covers is not asked any more, so that deed is the last one.
    assert [label for label, deed in DEEDS.items() if "standing" in deed.more] == [list(DEEDS)[-1]]
    for number, (label, deed) in enumerate(DEEDS.items()):
        with naming(label):
            await _kill_at_every_statement(reaching, deed, None if whole else number)
    acts = [act["payload"]["act"] for act in await reaching.stage.outside.log()]
    for run in reaching.stage.runs:
        assert acts.count(act_name(run.job_id, 0, "a")) == 1, run.label
    await _promises(reaching.stage)


async def _kill_at_every_statement(reaching: Reaching, deed: Deed, number: int | None) -> None:
    """``number`` is that of a deed whose short form is enough."""
    stage = reaching.stage
    standing = str(bool(deed.more.get("standing"))).lower()
    policy = POLICY.format(quorum=deed.quorum, standing=standing)
    await apply_policies(stage.world.db, stage.world.admin.actor, policy)
    # The first decision of an org makes the key that signs receipts; all that is counted here come after it.
    async with stage.world.db.transaction(stage.world.org_id) as tx:
        await receipts.get_signer(stage.world.db, tx)
    alive = await _ask(reaching, deed, "nothing")
    before = await _everything(stage, alive.approval)
    process = await _process(reaching, deed, alive, records=True)
    assert await process.wait() == 0, process.said()
    after = await _everything(stage, alive.approval)
    assert {name for name in PARTS if before[name] != after[name]} == deed.changes
    assert await _again(reaching, deed, alive) == deed.again
    await _finish(reaching, alive)
    points = process.points()
    last_commit = max(n for n, point in enumerate(points) if point.startswith("commit:before"))
    points = without_statements_after(points)
    # A vote is two statements: the request is opened, and the vote is written.
    assert sum(point.startswith("statement:before") for point in last_transaction(points)) >= 2
    if number is not None:
        # Who is asking, and what was asked, is read before.
        points = every_third_statement(last_transaction(points), number)
    committed = [p for p in process.points()[last_commit + 1 :] if p in points]
    assert committed

    async def kill(asked: Asked, point: str) -> None:
        victim = await _process(reaching, deed, asked, at=point)
        assert await victim.wait() == -SIGKILL, victim.said()
        # A backend may need a moment to notice that its client is gone.
        await stage.until(FREE, asked.approval.id)
        assert await _everything(stage, asked.approval) == (after if point in committed else before)

    # Who dies before the commit leaves the request as it was: the next one dies at the next point of the same request.
    asked = await _ask(reaching, deed, "before the commit")
    for point in points:
        if point not in committed:
            with naming(point):
                await kill(asked, point)
    assert await _again(reaching, deed, asked) == "OK"
    await _finish(reaching, asked)
    for point in committed:
        with naming(point):
            asked = await _ask(reaching, deed, point)
            await kill(asked, point)
            assert await _again(reaching, deed, asked) == deed.again
            await _finish(reaching, asked)


# Asking --------------------------------------------------------------------------------------------------------


@extents
@pytest.mark.proves("D.202")
async def test_killed_at_every_statement_of_asking_people_of_whom_one_is_away(reaching: Reaching, whole: bool) -> None:
    """Whoever comes through asks once: one request, one hop past the absent one, one message to each of the others."""
    stage, world = reaching.stage, reaching.stage.world
    await apply_policies(world.db, world.admin.actor, POLICY.format(quorum=2, standing="false"))
    away = AbsenceDraft(delegate_id=reaching.dan.member_id, ends_at=datetime.now(UTC) + timedelta(days=1))
    await orgs.create_absence(world.db, reaching.bea.actor, away)

    async def asked_once(run: Run) -> None:
        (asked,) = await _asked(stage, run)
        found = await _everything(stage, asked)
        assert found["hops"] == [("Bea", "Dan", True)]
        assert found["messages"] == [("cal@example.com", 1), ("dan@example.com", 1)]
        assert [action for (action,) in found["trail"]].count("approval_delegated") == 1
        assert found["events"] == [
            ("requested", None, None), ("dispatched", None, "dashboard"), ("delegated", "Bea", None)
        ]  # fmt: skip
        assert len(await stage.rows("select 1 from approval_request where job_id = $1", run.job_id)) == 1
        for by in (reaching.cal, reaching.dan):
            assert await _yes(reaching, asked, by) == "OK"
        await stage.rescued(run)

    first = await _submit(stage, Kind.WITH_KEY, "a", "nothing")
    worker = await stage.worker(first.app, records=True)
    await _asked(stage, first)
    assert await worker.end() == 0, worker.said()
    points = worth_a_try(worker.points(), statements=True)
    points = points[points.index("model:after#1") : points.index("stop_worker:before#1")]
    points = without_statements_after(points)
    if not whole:
        points = last_transaction(points)
    assert sum(point.startswith("statement:before") for point in points) >= 5
    await asked_once(first)

    async def kill(point: str) -> None:
        run = await _submit(stage, Kind.WITH_KEY, "a", point)
        await stage.killed(run, point)
        await _waits(stage, run)
        await asked_once(run)

    await each(points, kill)
    await require_clean(stage)
    await _promises(stage)
    box = Postbox()
    await drain(Notifier(world.db, [box], PUBLIC_URL))
    # All of them are over by now, and whoever was never asked is not told how it ended.
    assert box.received == []
