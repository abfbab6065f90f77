"""Jobs that go on without asking where somebody said yes to more than one call, and ask where that ends."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.agents import verbs as agents
from cortex_plane.approvals.model.approvals import Channel, Choice, EffectAnswer, Revocation
from cortex_plane.approvals.verbs import settlements, standing_approvals
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.effects import Verdict
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import orgs
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import Shipping, decide, pending, ship, waiting
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.proofs import MALLORY
from tests.fixtures.standing_approvals import given_standing, policy, stand, standing, standing_of, standing_world
from tests.fixtures.workers import (
    Died,
    actions,
    call,
    chains_whole,
    died,
    ended,
    job_of,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)

W = JobStatus.WAITING_FOR_APPROVAL
PAUSED, COMPLETED = JobStatus.PAUSED, JobStatus.COMPLETED


@pytest_asyncio.fixture
async def org(db: Database) -> World:
    return await standing_world(db)


async def rest(world: World, job: UUID, *apps: App) -> JobStatus:
    """Let a worker go on with a job, until it ends or somebody must do something."""
    async with working(world.db, *apps):
        return (await until(world, job, W, PAUSED, COMPLETED, JobStatus.FAILED)).status


async def anew(world: World, session_id: UUID | None = None) -> UUID:
    """The same task once more."""
    agent = await agents.get_agent(world.db, world.admin.actor, "shipper")
    return await submit(world, agent, session_id=session_id)


async def used(world: World, job: UUID) -> int:
    return (await standing_of(world, (await job_of(world, job)).session_id)).used_calls


# Its bounds ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.160", "D.162")
async def test_the_next_calls_are_sent_and_counted_and_the_one_after_asks(
    org: World, admin: asyncpg.Connection
) -> None:
    shipping = Shipping()
    job, given = await standing(org, shipping, *(turn(ship(f"{n}.0")) for n in (2, 3, 4)), calls=2)
    assert (given.max_calls, given.used_calls, given.usable) == (2, 0, True)
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == [f"{n}.0 to production" for n in (1, 2, 3)]
    (asked,) = await pending(org, job)
    assert asked.arguments == {"version": "4.0"}
    rules = await admin.fetch(
        "select c.rule, c.verdict from standing_use u join tool_call c on c.id = u.call_id where u.standing_id = $1", given.id,
    )  # fmt: skip
    assert [tuple(row) for row in rules] == [(f"standing:{given.id}", "allow")] * 2
    after = await standing_of(org, given.session_id)
    assert (after.used_calls, after.usable, after.why_not) == (2, False, "all its calls are used")
    assert after.last_used_at is not None
    done = await actions(org, await job_of(org, job))
    assert (done.count("standing_granted"), done.count("standing_used")) == (1, 2)
    assert await whole(org)


async def test_only_with_the_same_arguments(org: World) -> None:
    shipping = Shipping()
    job, given = await standing(org, shipping, turn(ship("1.0")), turn(ship("1.1")), same_arguments=True)
    assert given.input_hash is not None
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to production"] * 2


async def test_after_an_edit_it_is_for_the_edited_arguments(org: World) -> None:
    shipping = Shipping()
    job, (asked,) = await waiting(
        org, shipping, ship("1.0"), after=[turn(ship("1.0", to="staging")), turn(ship("1.0"))]
    )
    edited = {"version": "1.0", "to": "staging"}
    given = await stand(org, asked, arguments=edited, same_arguments=True)
    assert given.input_hash not in (None, asked.input_hash)
    assert given.required.version == 2
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to staging"] * 2


async def test_only_where_its_condition_holds(org: World) -> None:
    shipping = Shipping()
    job, _ = await standing(
        org, shipping, turn(ship("1.9")), turn(ship("2.0")), condition='args.version.startsWith("1.")'
    )
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to production", "1.9 to production"]


async def test_a_condition_that_fails_covers_nothing(org: World) -> None:
    shipping = Shipping()
    job, _ = await standing(org, shipping, turn(ship("1.9")), condition='args.to == "production"')
    assert await rest(org, job, shipping.app) is W, "the argument is not there"
    assert shipping.shipped == ["1.0 to production"]


async def test_not_after_its_time(org: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    job, given = await standing(org, shipping, turn(ship("1.9")), seconds=60)
    assert (given.expires_at - given.created_at).total_seconds() == 60
    await admin.execute(
        "update standing_approval set created_at = created_at - interval '1 hour',"
        " expires_at = expires_at - interval '1 hour'"
    )
    assert await rest(org, job, shipping.app) is W
    assert (await standing_of(org, given.session_id)).why_not == "its time is over"


async def test_it_ends_after_a_day_where_nobody_says_when(org: World) -> None:
    _, given = await standing(org, Shipping(), calls=3)
    assert (given.expires_at - given.created_at).total_seconds() == 24 * 3600


async def test_another_job_of_the_session_is_covered_and_another_session_is_not(org: World) -> None:
    shipping = Shipping()
    job, given = await standing(org, shipping, seconds=600)
    assert await rest(org, job, shipping.app) is COMPLETED
    same = await anew(org, given.session_id)
    assert await rest(org, same, shipping.app) is COMPLETED
    other = await anew(org)
    assert await rest(org, other, shipping.app) is W
    assert len(shipping.shipped) == 2


async def test_another_tool_is_not_covered(db: Database) -> None:
    org = await World.create(db, "standing", policies=policy("'*'"))
    shipping = Shipping()
    job, _ = await standing(org, shipping, turn(call("look")), seconds=600)
    assert await rest(org, job, shipping.app) is W
    (asked,) = await pending(org, job)
    assert asked.tool_name == "look"


async def test_another_version_of_the_tool_is_not_covered(org: World) -> None:
    shipping = Shipping()
    job, given = await standing(org, shipping, seconds=600)
    await rest(org, job, shipping.app)
    newer = App("tests")

    @newer.tool(risk="high", timeout=6)
    async def ship(version: str) -> str:
        """Ship it otherwise."""
        raise AssertionError("nobody allowed this")

    assert await rest(org, await anew(org, given.session_id), newer) is W


async def test_a_tool_that_only_reads_is_covered_and_counted_too(db: Database) -> None:
    org = await World.create(db, "standing", policies=policy("look"))
    shipping = Shipping()
    job, (asked,) = await waiting(org, shipping, call("look"), after=[turn(call("look")), turn(call("look"))])
    await stand(org, asked, calls=1)
    assert await rest(org, job, shipping.app) is W
    assert await used(org, job) == 1


@pytest.mark.proves("D.163")
async def test_of_two_calls_in_one_response_the_second_asks_where_one_is_left(org: World) -> None:
    shipping = Shipping()
    job, _ = await standing(org, shipping, turn(ship("2.0"), ship("3.0")), calls=1)
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to production"], "they run in order, once all are allowed"
    (asked,) = await pending(org, job)
    assert asked.arguments == {"version": "3.0"}
    await decide(org, asked)
    assert await rest(org, job, shipping.app) is COMPLETED
    assert shipping.shipped == [f"{n}.0 to production" for n in (1, 2, 3)]
    assert await used(org, job) == 1


# Who says no meanwhile -------------------------------------------------------------------------------------------


@pytest.mark.proves("D.161")
@pytest.mark.parametrize(
    "terms",
    [
        {"standing": "false"},
        {"clearance": "7"},
        {"template": "critical_path"},
        {"quorum": "2"},
        {"approvers": "{roles: [steward]}"},
    ],
)
async def test_a_policy_that_was_tightened_afterwards_wins(org: World, terms: dict[str, str]) -> None:
    approver = await org.person(Role.APPROVER, name="Pat")
    await org.person(Role.ADMIN, Role.STEWARD, name="Bea", clearance=9)
    await org.person(Role.ADMIN, Role.STEWARD, name="Cas", clearance=9)
    shipping = Shipping()
    job, _ = await standing(org, shipping, turn(ship("2.0")), by=approver, seconds=600)
    await apply_policies(org.db, org.admin.actor, policy(**terms))
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to production"]
    assert await used(org, job) == 0


@pytest.mark.proves("D.161")
async def test_a_deny_is_never_turned(org: World) -> None:
    shipping = Shipping()
    job, (asked,) = await waiting(org, shipping, ship("1.0"), after=[turn(ship("2.0"))])
    await stand(org, asked, seconds=600)
    async with working(org.db, shipping.app):
        await ended(org, job)
    await apply_policies(org.db, org.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
    frozen = await anew(org, asked.session_id)
    assert await rest(org, frozen, shipping.app) is COMPLETED
    (step, *_) = await steps_of(org, frozen)
    assert "denied (org:freeze" in (step.calls[0].error or "")
    assert shipping.shipped == ["1.0 to production", "2.0 to production"]


async def test_a_call_that_somebody_turned_down_stays_down(org: World) -> None:
    await apply_policies(org.db, org.admin.actor, policy(on_deny="continue"))
    shipping = Shipping()
    job, (asked,) = await waiting(
        org, shipping, ship("2.0"), after=[turn(ship("1.0")), turn(ship("2.0")), turn(ship("3.0"))]
    )
    await decide(org, asked, Choice.DENIED)
    assert await rest(org, job, shipping.app) is W
    (asked,) = await pending(org, job)
    await stand(org, asked, seconds=600)
    assert await rest(org, job, shipping.app) is COMPLETED
    assert shipping.shipped == ["1.0 to production", "3.0 to production"]
    step = (await steps_of(org, job))[2]
    assert "turned down before" in (step.calls[0].error or "")


async def _change(world: World, person: Person, **change: Any) -> None:
    assert person.actor.user_account_id is not None
    await orgs.update_member(world.db, world.admin.actor, person.actor.user_account_id, MemberChange(**change), None)


@pytest.mark.proves("D.161")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"active": False}, "Pat is not active any more"),
        ({"roles": [Role.MEMBER]}, "Pat is not one of those who may approve it any more"),
        ({"clearance": 1}, "Pat has clearance 1 by now, and it needs 2"),
    ],
)
async def test_it_ends_with_the_authority_of_whoever_gave_it(db: Database, change: dict[str, Any], why: str) -> None:
    org = await standing_world(db)
    approver = await org.person(Role.APPROVER, name="Pat", clearance=2)
    await org.person(Role.APPROVER, name="Bea", clearance=2)
    await apply_policies(db, org.admin.actor, policy(clearance="2"))
    shipping = Shipping()
    job, given = await standing(org, shipping, turn(ship("2.0")), by=approver, seconds=600)
    assert given.usable
    await _change(org, approver, **change)
    shown_now = await standing_of(org, given.session_id)
    assert (shown_now.usable, shown_now.why_not) == (False, why)
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to production"]


@pytest.mark.proves("D.164")
async def test_what_is_revoked_covers_nothing_any_more(org: World) -> None:
    shipping = Shipping()
    job, given = await standing(org, shipping, turn(ship("2.0")), seconds=600)
    revoked = await standing_approvals.revoke(org.db, org.admin.actor, given.id, Revocation(reason="enough of it"))
    assert (revoked.revoked_by, revoked.revocation_reason, revoked.usable) == ("Ada", "enough of it", False)
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to production"]
    assert (await actions(org, await job_of(org, job))).count("standing_revoked") == 1


# Between the verdict and the intent ------------------------------------------------------------------------------


def _meddling(what: Any) -> tuple[App, list[str]]:
    """An app whose first tool does something to the plane, before the second call of the response is sent."""
    app, sent = App("tests"), []

    @app.tool(timeout=0.2, on_uncertain="retry_with_key")
    async def meddle() -> str:
        sent.append("meddle")
        await what()
        return "done"

    @app.tool(risk="high", timeout=5, on_uncertain="retry_with_key")
    async def ship(version: str, to: str = "production") -> str:
        """Ship a version."""
        sent.append(version)
        return "out"

    return app, sent


@pytest.mark.proves("D.164")
@pytest.mark.parametrize("what", ["revoked", "expired", "used up", "giver demoted", "giver changed"])
async def test_what_happens_between_verdict_and_intent_is_obeyed(
    org: World, admin: asyncpg.Connection, what: str
) -> None:
    approver = await org.person(Role.APPROVER, name="Pat")
    made: list[Any] = []

    async def meddle() -> None:
        (given,) = made
        if what == "revoked":
            await standing_approvals.revoke(org.db, org.admin.actor, given.id, Revocation())
        elif what == "expired":
            await admin.execute(
                "update standing_approval set created_at = created_at - interval '3 days', expires_at = created_at"
                " - interval '1 day'"
            )
        elif what == "used up":
            await admin.execute("update standing_approval set used_calls = max_calls")
        elif what == "giver demoted":
            await _change(org, approver, roles=[Role.MEMBER])
        else:
            await _change(org, approver, display_name="Patricia")

    app, sent = _meddling(meddle)
    job, (asked,) = await waiting(org, _as_shipping(app), ship("1.0"), after=[turn(call("meddle"), ship("2.0"))])
    made.append(await stand(org, asked, approver, calls=5))
    end = await rest(org, job, app)
    trail = await actions(org, await job_of(org, job))
    assert "job_handed_back" in trail, "it was refused at the last moment"
    counted = await admin.fetchval("select count(*) from standing_use")
    if what == "giver changed":
        # Nothing that matters: judged again, and covered again. What was refused was not counted.
        assert (end, sent, counted) == (COMPLETED, ["1.0", "meddle", "2.0"], 1)
        assert (await used(org, job), trail.count("standing_used")) == (1, 1)
    else:
        assert (end, sent, counted) == (W, ["1.0", "meddle"], 0)
        assert trail.count("standing_used") == 0
    assert await whole(org)


def _as_shipping(app: App) -> Shipping:
    made = Shipping()
    made.app = app
    return made


# Rows that nobody gave -------------------------------------------------------------------------------------------


async def refusals(world: World, job: UUID) -> list[str]:
    """Why standing approvals that would have covered a call of this job were not believed."""
    session = (await job_of(world, job)).session_id
    entries = await audit.list_entries(world.db, world.admin.actor, session, 0, 500)
    bodies = [entry.body["data"] for entry in entries if entry.action == "receipt_refused" and entry.body]
    assert all(body["standing"] and body["tool"] == "ship" for body in bodies)
    return [body["reason"] for body in bodies]


async def _resigned(admin: asyncpg.Connection) -> None:
    """The receipt says what the row says, and is signed with a key of their own."""
    (receipt,) = await admin.fetch("select org_id, body from approval_receipt")
    body = receipt["body"].replace(b'"max_calls":5', b'"max_calls":9')
    assert body != receipt["body"]
    await admin.execute(
        "insert into signing_key (org_id, id, public_key, sealed, retired_at) values ($1, $2, $3, '', plane_now())",
        receipt["org_id"], MALLORY.id, MALLORY.public,
    )  # fmt: skip
    await admin.execute("update standing_approval set max_calls = 9")
    await admin.execute(
        "update approval_receipt set key_id = $1, body = $2, signature = $3",
        MALLORY.id,
        body,
        MALLORY.private.sign(body),
    )


OTHERWISE = "its receipt says something else: "
TAMPERED: dict[str, tuple[Any, str]] = {
    "more calls": ("update standing_approval set max_calls = 500", f"{OTHERWISE}max_calls"),
    "without end of calls": ("update standing_approval set max_calls = null", f"{OTHERWISE}max_calls"),
    "no condition": ("update standing_approval set condition = null", f"{OTHERWISE}condition"),
    "other arguments": ("update standing_approval set input_hash = null", f"{OTHERWISE}input_hash"),
    "longer": (
        "update standing_approval set expires_at = expires_at + interval '1 day'", f"{OTHERWISE}expires_at"
    ),
    "somebody else's": (
        "update standing_approval set granted_by_id = (select id from user_account where display_name = 'Ada')",
        f"{OTHERWISE}by",
    ),
    "another id": ("update standing_approval set id = gen_random_uuid()", f"{OTHERWISE}id"),
    "no receipt": ("delete from approval_receipt", "there is no receipt of its approval"),
    "a receipt that was changed": (
        "update approval_receipt set body = convert_to(replace(convert_from(body, 'UTF8'), 'Pat', 'Eve'), 'UTF8')",
        "the signature of its receipt is false",
    ),
    "a receipt that they signed": (_resigned, "the key of its receipt is not one of the org's"),
}  # fmt: skip


@pytest.mark.proves("D.161", "D.172")
@pytest.mark.parametrize("name", TAMPERED)
async def test_a_row_that_its_receipt_does_not_vouch_for_covers_nothing(
    org: World, admin: asyncpg.Connection, name: str
) -> None:
    approver = await org.person(Role.APPROVER, name="Pat")
    shipping = Shipping()
    bounds = {"calls": 5, "same_arguments": True, "condition": 'args.version == "1.0"', "seconds": 600}
    job, given = await standing(org, shipping, by=approver, **bounds)
    assert await rest(org, job, shipping.app) is COMPLETED
    tamper, reason = TAMPERED[name]
    await (admin.execute(tamper) if isinstance(tamper, str) else tamper(admin))
    again = await anew(org, given.session_id)
    assert await rest(org, again, shipping.app) is W
    assert shipping.shipped == ["1.0 to production"]
    assert await refusals(org, again) == [reason]
    assert await used(org, again) == 0
    (asked,) = await pending(org, again)
    await decide(org, asked)
    assert await rest(org, again, shipping.app) is COMPLETED, "a person may still say yes"
    assert await chains_whole(org)


@pytest.mark.proves("D.161", "D.172")
async def test_a_row_that_somebody_put_there_covers_nothing(org: World, admin: asyncpg.Connection) -> None:
    """Beside a true yes to one call: its receipt says nothing of more."""
    shipping = Shipping()
    job, (asked,) = await waiting(org, shipping, ship("1.0"), after=[turn(ship("2.0"))])
    await decide(org, asked)
    await given_standing(org, asked.id, org.admin.actor)
    assert await rest(org, job, shipping.app) is W
    assert shipping.shipped == ["1.0 to production"]
    assert await refusals(org, job) == ["its receipt is for one call, and for no more"]


@pytest.mark.proves("D.161", "D.172")
async def test_a_row_that_was_moved_to_another_session_covers_nothing(org: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    job, _ = await standing(org, shipping, seconds=600)
    assert await rest(org, job, shipping.app) is COMPLETED
    other = await anew(org)
    await admin.execute("update standing_approval set session_id = $1", (await job_of(org, other)).session_id)
    assert await rest(org, other, shipping.app) is W
    assert await refusals(org, other) == [f"{OTHERWISE}session"]
    assert shipping.shipped == ["1.0 to production"]


async def test_one_that_is_true_covers_beside_one_that_is_not(org: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    job, (first, second) = await waiting(org, shipping, ship("1.0"), ship("2.0"), after=[turn(ship("3.0"))])
    true = await stand(org, first, calls=1)
    await decide(org, second)
    # It has no count to keep, so it would be taken first.
    await given_standing(org, second.id, org.admin.actor)
    await admin.execute("update standing_approval set max_calls = null where id <> $1", true.id)
    assert await rest(org, job, shipping.app) is COMPLETED
    assert shipping.shipped == [f"{n}.0 to production" for n in (1, 2, 3)]
    assert await admin.fetchval("select used_calls from standing_approval where id = $1", true.id) == 1
    assert len(await refusals(org, job)) == 1


# Sent again ------------------------------------------------------------------------------------------------------


class Dying:
    """Ships; at the second version its worker dies, as often as it is told."""

    def __init__(self, deaths: int = 1, on_uncertain: str = "retry_with_key") -> None:
        self.sent: list[str] = []
        self.deaths = deaths
        self.app = App("tests")

        @self.app.tool(risk="high", timeout=0.2, on_uncertain=on_uncertain)
        async def ship(version: str, to: str = "production") -> str:
            """Ship a version."""
            self.sent.append(version)
            if version == "2.0" and self.deaths > 0:
                self.deaths -= 1
                raise Died
            return "out"


async def _dead_in_the_middle(org: World, dying: Dying, **bounds: Any) -> UUID:
    shipping = _as_shipping(dying.app)
    job, (asked,) = await waiting(org, shipping, ship("1.0"), after=[turn(ship("2.0"))])
    await stand(org, asked, **bounds)
    await died(org.db, dying.app)
    assert dying.sent == ["1.0", "2.0"]
    return job


@pytest.mark.proves("D.165")
async def test_a_call_whose_worker_died_is_sent_again_and_not_counted_again(org: World) -> None:
    dying = Dying()
    job = await _dead_in_the_middle(org, dying, calls=1)
    async with working(org.db, dying.app, adoption_seconds=0.2):
        assert (await ended(org, job)).status is COMPLETED
    assert dying.sent == ["1.0", "2.0", "2.0"], "with the same key"
    assert await used(org, job) == 1


@pytest.mark.proves("D.165")
@pytest.mark.parametrize("what", ["revoke", "demote"])
async def test_a_call_whose_standing_approval_ended_is_not_sent_again(org: World, what: str) -> None:
    approver = await org.person(Role.APPROVER, name="Pat")
    dying = Dying()
    shipping = _as_shipping(dying.app)
    job, (asked,) = await waiting(org, shipping, ship("1.0"), after=[turn(ship("2.0"))])
    given = await stand(org, asked, approver, calls=1)
    await died(org.db, dying.app)
    if what == "revoke":
        await standing_approvals.revoke(org.db, org.admin.actor, given.id, Revocation())
    else:
        await _change(org, approver, roles=[Role.MEMBER])
    async with working(org.db, dying.app, adoption_seconds=0.2):
        await until(org, job, PAUSED)
    assert dying.sent == ["1.0", "2.0"]
    (card,) = await pending(org, job)
    assert "cannot tell whether it happened" in (card.question or "")


@pytest.mark.proves("D.165", "D.172")
async def test_a_call_whose_standing_approval_was_tampered_with_is_not_sent_again(
    org: World, admin: asyncpg.Connection
) -> None:
    dying = Dying()
    job = await _dead_in_the_middle(org, dying, calls=1)
    await admin.execute("update standing_approval set max_calls = 100")
    async with working(org.db, dying.app, adoption_seconds=0.2):
        await until(org, job, PAUSED)
    assert dying.sent == ["1.0", "2.0"]
    assert f"{OTHERWISE}max_calls" in await refusals(org, job)


@pytest.mark.parametrize("alive", [True, False])
async def test_a_call_that_did_not_happen_needs_permission_of_the_moment(org: World, alive: bool) -> None:
    dying = Dying(on_uncertain="ask_human")
    job = await _dead_in_the_middle(org, dying, calls=1)
    async with working(org.db, dying.app, adoption_seconds=0.2):
        await until(org, job, PAUSED)
    given = await standing_of(org, (await job_of(org, job)).session_id)
    if not alive:
        await standing_approvals.revoke(org.db, org.admin.actor, given.id, Revocation())
    (card,) = await pending(org, job)
    answer = EffectAnswer(verdict=Verdict.DID_NOT_HAPPEN)
    await settlements.answer(org.db, org.admin.actor, card.id, answer, Channel.API)
    end = await rest(org, job, dying.app)
    if alive:
        assert (end, dying.sent) == (COMPLETED, ["1.0", "2.0", "2.0"])
        assert await used(org, job) == 1, "it was counted for this very call"
    else:
        assert (end, dying.sent) == (W, ["1.0", "2.0"])
        (again,) = await pending(org, job)
        assert again.arguments == {"version": "2.0"}


@pytest.mark.proves("D.165")
async def test_a_worker_that_dies_between_verdict_and_intent_counts_nothing(org: World) -> None:
    """The verdict is only in memory: whoever takes the job up judges again."""
    deaths = [Died()]

    async def die() -> None:
        if deaths:
            raise deaths.pop()

    app, sent = _meddling(die)
    job, (asked,) = await waiting(org, _as_shipping(app), ship("1.0"), after=[turn(call("meddle"), ship("2.0"))])
    await stand(org, asked, calls=1)
    await died(org.db, app)
    assert (sent, await used(org, job)) == (["1.0", "meddle"], 0)
    async with working(org.db, app, adoption_seconds=0.2):
        assert (await ended(org, job)).status is COMPLETED
    assert (sent, await used(org, job)) == (["1.0", "meddle", "meddle", "2.0"], 1)
