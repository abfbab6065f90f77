"""Standing approvals given, listed, revoked; and everybody at once on the last of their calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pydantic
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice, Revocation, StandingApproval, StandingDraft
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.db.database import Database
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, NotFound
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.acceptance.test_campaign import INVARIANTS
from tests.fixtures.approvals import Shipping, decide, shown, waiting
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.standing_approvals import policy, stand, standing, standing_of, standing_world
from tests.fixtures.waits import lock_waiters
from tests.storage.leases import Held, call, ledger, make_agent, make_worker, queue, step

LEASES = 8


@pytest_asyncio.fixture
async def org(db: Database) -> World:
    return await standing_world(db)


# Giving it -------------------------------------------------------------------------------------------------------


async def _untouched(world: World, admin: asyncpg.Connection, id: UUID) -> bool:
    given = await admin.fetchval("select count(*) from standing_approval")
    return given == 0 and (await shown(world, id)).status is ApprovalStatus.PENDING


@pytest.mark.proves("D.166")
@pytest.mark.parametrize(
    ("terms", "draft", "code"),
    [
        ({"standing": "false"}, {"calls": 1}, "standing_not_allowed"),
        ({"template": "critical_path"}, {"calls": 1}, "standing_not_allowed"),
        ({"template": "full_pipeline"}, {"calls": 1}, "standing_not_allowed"),
        ({"quorum": "2"}, {"calls": 1}, "standing_not_allowed"),
        ({}, {}, "standing_unbounded"),
        ({}, {"condition": "args.amount <"}, "invalid_condition"),
        ({}, {"condition": "args.x.map(y, y) == []"}, "invalid_condition"),
        ({}, {"condition": "args.version.matches('((a{99}){99}){99}')"}, "invalid_condition"),
        ({}, {"condition": "args." + ".".join("x" * 400) + " == 1"}, "invalid_condition"),
    ],
)
async def test_what_cannot_be_given_decides_nothing(
    org: World, admin: asyncpg.Connection, terms: dict[str, str], draft: dict[str, Any], code: str
) -> None:
    await org.person(Role.APPROVER, name="Bea")
    await org.person(Role.APPROVER, name="Cas")
    await apply_policies(org.db, org.admin.actor, policy(**terms))
    _, (asked,) = await waiting(org, Shipping())
    with pytest.raises(CortexError) as refused:
        await decide(org, asked, standing=StandingDraft(**draft))
    assert refused.value.code == code
    assert refused.value.hint
    assert await _untouched(org, admin, asked.id)
    entries = await audit.list_entries(org.db, org.admin.actor, asked.session_id, 0, 100)
    assert [e.action for e in entries if e.action == "approval_refused"], "and stands on the trail"


@pytest.mark.proves("D.166")
async def test_a_no_stands_for_nothing_else(org: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(org, Shipping())
    with pytest.raises(CortexError, match="Only a yes"):
        await decide(org, asked, Choice.DENIED, standing=StandingDraft(calls=1))
    assert await _untouched(org, admin, asked.id)


@pytest.mark.parametrize("draft", [{"calls": 0}, {"calls": 1001}, {"seconds": 604_801}, {"condition": "x" * 3000}])
def test_what_is_out_of_range_is_not_even_sent(draft: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        StandingDraft(**draft)


async def test_the_trail_tells_who_gave_it_and_how_far_it_goes(org: World) -> None:
    approver = await org.person(Role.APPROVER, name="Pat")
    _, (asked,) = await waiting(org, Shipping())
    bounds = {"calls": 3, "seconds": 60, "condition": "args.version != '9'", "same_arguments": True}
    given = await stand(org, asked, approver, **bounds)
    assert (given.granted_by, given.granted_by_id) == ("Pat", approver.actor.user_account_id)
    assert (given.approval_id, given.agent, given.tool_name) == (asked.id, "shipper", "ship")
    assert (given.required.rule, given.required.template) == (asked.rule, asked.template)
    entries = await audit.list_entries(org.db, org.admin.actor, asked.session_id, 0, 100)
    (fact,) = [entry for entry in entries if entry.action == "standing_granted"]
    assert fact.body is not None
    assert fact.body["actor"]["name"] == "Pat"
    expected = {
        "standing": str(given.id), "approval": str(asked.id), "tool": "ship", "digest": asked.tool_digest,
        "input_hash": asked.input_hash, "max_calls": 3, "condition": "args.version != '9'",
    }  # fmt: skip
    assert expected.items() <= fact.body["data"].items()
    assert (await audit.verify(org.db, org.admin.actor)).faults == []


async def test_the_same_decision_again_gives_nothing_more(org: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(org, Shipping())
    for _ in range(2):
        await decide(org, asked, standing=StandingDraft(calls=1))
    assert await admin.fetchval("select count(*) from standing_approval") == 1


# Listing and revoking it -----------------------------------------------------------------------------------------


async def _ids(world: World, who: Person, **filters: Any) -> list[UUID]:
    page = await standing_approvals.list_page(world.db, who.actor, None, 50, **filters)
    return [item.id for item in page.items]


@pytest.mark.proves("D.167")
async def test_who_sees_and_who_revokes(org: World, other: World) -> None:
    giver = await org.person(Role.APPROVER, name="Pat")
    colleague = await org.person(Role.APPROVER, name="Bea")
    operator = await org.person(Role.OPERATOR, name="Op")
    member = await org.person(Role.MEMBER, name="Mel")
    guest = await org.person(Role.GUEST, name="Gus")
    _, given = await standing(org, Shipping(), by=giver, seconds=600)
    for who in (giver, colleague, operator, org.admin):
        assert await _ids(org, who) == [given.id]
        assert (await standing_approvals.get(org.db, who.actor, given.id)).id == given.id
    for who in (member, guest, other.admin):
        assert await _ids(org, who) == []
        with pytest.raises(NotFound):
            await standing_approvals.get(org.db, who.actor, given.id)
        with pytest.raises(NotFound):
            await standing_approvals.revoke(org.db, who.actor, given.id, Revocation())
    with pytest.raises(Forbidden) as refused:
        await standing_approvals.revoke(org.db, colleague.actor, given.id, Revocation())
    assert refused.value.code == "not_yours_to_revoke"
    assert (await standing_of(org, given.session_id)).usable
    first = await standing_approvals.revoke(org.db, giver.actor, given.id, Revocation(reason="done"))
    again = await standing_approvals.revoke(org.db, operator.actor, given.id, Revocation(reason="me too"))
    assert first == again
    assert (again.revoked_by, again.why_not) == ("Pat", "Pat revoked it")
    entries = await audit.list_entries(org.db, org.admin.actor, given.session_id, 0, 100)
    assert [entry.action for entry in entries].count("standing_revoked") == 1


async def test_a_list_can_be_of_one_session_or_of_what_is_active(org: World) -> None:
    _, first = await standing(org, Shipping(), calls=1)
    _, (asked,) = await waiting(org, Shipping(), slug="shipper-2")
    second = await stand(org, asked, seconds=600)
    assert await _ids(org, org.admin) == [second.id, first.id]
    assert await _ids(org, org.admin, session_id=first.session_id) == [first.id]
    await standing_approvals.revoke(org.db, org.admin.actor, second.id, Revocation())
    assert await _ids(org, org.admin, active=True) == [first.id]
    page = await standing_approvals.list_page(org.db, org.admin.actor, None, 1)
    assert [item.id for item in page.items] == [second.id]
    rest = await standing_approvals.list_page(org.db, org.admin.actor, page.next, 1)
    assert [item.id for item in rest.items] == [first.id]


# Races -----------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    world: World
    admin: asyncpg.Connection
    given: StandingApproval
    held: list[Held]
    worker: UUID

    def intent(self, **changes: Any) -> StepWrite:
        """A write that sends a call on the standing approval, as the runtime makes it."""
        fields = {
            "tool": "ship", "digest": self.given.tool_digest, "rule": f"standing:{self.given.id}",
            "standing_id": str(self.given.id), "granter_revision": 1,
        }  # fmt: skip
        return StepWrite(step=step(), dispatches=True, **ledger(call(**{**fields, **changes})))

    async def used(self) -> tuple[int, int]:
        return (
            await self.admin.fetchval("select used_calls from standing_approval where id = $1", self.given.id),
            await self.admin.fetchval("select count(*) from standing_use where standing_id = $1", self.given.id),
        )  # fmt: skip


async def staged(world: World, admin: asyncpg.Connection, jobs: int = 1, **bounds: Any) -> Stage:
    """A standing approval, and leases of jobs of its session."""
    _, given = await standing(world, Shipping(), **bounds)
    agent = await make_agent(world, f"racer-{uuid4().hex[:8]}", limit=100)
    await queue(admin, world, jobs, agent=agent, session=given.session_id)
    worker = await make_worker(world.db)
    return Stage(world, admin, given, [await Held.claim(world.db, worker) for _ in range(jobs)], worker)


async def told(write: Any) -> str:
    try:
        await write
    except Conflict as error:
        return error.code
    return "sent"


@pytest.mark.proves("D.163")
@pytest.mark.parametrize("calls", [1, 3])
async def test_jobs_of_a_session_that_race_for_the_last_calls_send_exactly_so_many(
    org: World, admin: asyncpg.Connection, calls: int
) -> None:
    stage = await staged(org, admin, LEASES, calls=calls)
    answers = Counter(await asyncio.gather(*(told(held.write(stage.intent())) for held in stage.held)))
    assert answers == {"sent": calls, "grant_refused": LEASES - calls}
    assert await stage.used() == (calls, calls)
    assert await admin.fetchval("select count(*) from tool_call where status = 'intended'") == calls
    broken = [name for name, query in INVARIANTS.items() if await admin.fetch(query)]
    assert broken == []


@pytest.mark.proves("D.164")
async def test_a_revocation_that_races_with_uses_comes_before_or_after_each(
    org: World, admin: asyncpg.Connection
) -> None:
    """Whoever was first: what the revocation says was used is what was sent."""
    stage = await staged(org, admin, LEASES, seconds=600)
    revoking = standing_approvals.revoke(org.db, org.admin.actor, stage.given.id, Revocation())
    writes = [told(held.write(stage.intent())) for held in stage.held]
    *answers, revoked = await asyncio.gather(*writes[:4], *writes[4:], revoking)
    sent = Counter(answers)["sent"]
    assert set(answers) <= {"sent", "grant_refused"}
    assert isinstance(revoked, StandingApproval)
    assert await stage.used() == (sent, sent) == (revoked.used_calls, revoked.used_calls)
    assert (await audit.verify(org.db, org.admin.actor)).faults == []


async def _blocked(admin: asyncpg.Connection) -> None:
    """Until somebody waits for somebody else's lock."""
    async with asyncio.timeout(10):
        while not await lock_waiters(admin):  # noqa: ASYNC110 -- only the database knows
            await asyncio.sleep(0.01)


@pytest.mark.proves("D.164")
async def test_a_use_that_waited_for_a_revocation_is_refused(org: World, admin: asyncpg.Connection) -> None:
    stage = await staged(org, admin, calls=5)
    async with org.db.transaction(org.org_id) as tx:
        await tx.rows(
            "update standing_approval set revoked_at = plane_now(), revoked_by = 'Ada' where id = $1", stage.given.id
        )
        use = asyncio.create_task(told(stage.held[0].write(stage.intent())))
        await _blocked(admin)
    assert await use == "grant_refused"
    assert await stage.used() == (0, 0)


@pytest.mark.proves("D.164")
async def test_a_revocation_that_waited_for_a_use_tells_of_it(org: World, admin: asyncpg.Connection) -> None:
    stage = await staged(org, admin, calls=5)
    (held,) = stage.held
    async with org.db.transaction(org.org_id) as tx:
        write = stage.intent()
        write.policies = held.given.policies
        written = await jobs_store.advance_job(tx, held.given, held.worker, held.number + 1, write, 2.0)
        assert written is not None
        revoking = asyncio.ensure_future(
            standing_approvals.revoke(org.db, org.admin.actor, stage.given.id, Revocation())
        )
        await _blocked(admin)
    assert (await revoking).used_calls == 1
    assert await stage.used() == (1, 1)


# The last look ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.162")
async def test_a_write_that_is_sent_twice_counts_once(org: World, admin: asyncpg.Connection) -> None:
    stage = await staged(org, admin, calls=2)
    (held,) = stage.held
    write = stage.intent()
    for _ in range(2):
        written = await held.write(write, number=held.given.write_seq + 1)
        assert written is not None
    assert written is not None
    assert written.applied_before
    assert await stage.used() == (1, 1)


@pytest.mark.proves("D.162")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tool": "pay"}, "grant_refused"),
        ({"digest": "00" * 32}, "grant_refused"),
        ({"input_hash": "ee" * 32}, "grant_refused"),
        ({"granter_revision": 2}, "grant_refused"),
        ({"standing_id": None}, "not_authorised"),
        ({"rule": "org:allow@1.1"}, "not_authorised"),
        ({"verdict": "requires_approval"}, "not_authorised"),
        ({"verdict": "deny"}, "not_authorised"),
    ],
)
async def test_the_database_itself_refuses_what_it_does_not_cover(
    org: World, admin: asyncpg.Connection, changes: dict[str, Any], code: str
) -> None:
    stage = await staged(org, admin, same_arguments=True)
    fits = {"input_hash": stage.given.input_hash}
    assert await told(stage.held[0].write(stage.intent(**{**fits, **changes}))) == code
    assert await stage.used() == (0, 0)
    assert await told(stage.held[0].write(stage.intent(**fits))) == "sent"


@pytest.mark.proves("D.162")
async def test_the_database_refuses_another_session_and_another_org(
    org: World, other: World, admin: asyncpg.Connection
) -> None:
    stage = await staged(org, admin, seconds=600)
    for world in (org, other):
        await queue(admin, world, 1, agent=await make_agent(world, "elsewhere"))
        held = await Held.claim_of(world.db, stage.worker, world.org_id)
        assert held.given.session_id != stage.given.session_id
        assert await told(held.write(stage.intent())) == "grant_refused"
    assert await stage.used() == (0, 0)
