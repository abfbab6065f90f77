"""Policies as they are applied, kept, read back, raced for and asked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from pydantic import ValidationError

from cortex_plane.agents import store as agents_store
from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.agents.model.tools import OnUncertain, ToolVersion
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound, Stale
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.policies.model.policies import (
    FIRST_PLATFORM_ROWS,
    Approvers,
    CallFacts,
    PolicyRow,
    PolicyVerdict,
    Quorum,
    RoleVotes,
    Template,
)
from cortex_plane.policies.model.versions import Applied, ExplainRequest, PolicyFile, QuorumDraft, RequestPolicy
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.verbs import policies, simulations
from cortex_plane.policies.verbs.policy_cache import PolicyCache, request_rows
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.access import ActorKind
from cortex_plane.tenancy.model.orgs import MemberChange, Role, TeamDraft
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.people import World
from tests.fixtures.rows import digests

ALLOW, DENY, ASK = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL


@pytest_asyncio.fixture
async def world(db: Database) -> World:
    """An org without policies of its own."""
    return await World.create(db, "acme", policies=None)


@pytest_asyncio.fixture
async def other(db: Database) -> World:
    return await World.create(db, "rival", policies=None)


def file_of(*rows: str, **options: Any) -> PolicyFile:
    listed = "".join(f"  - {{{row}}}\n" for row in rows)
    return PolicyFile(text=f"policies:\n{listed}" if rows else "policies: []\n", **options)


async def apply(world: World, *rows: str, **options: Any) -> Applied:
    return await policies.apply_policies(world.db, world.admin.actor, file_of(*rows, **options))


def facts(target: str = "deploy", **known: Any) -> CallFacts:
    found = CallFacts(target=target, arguments={}, read_only=False, risk=Risk.LOW, agent="deployer")
    return replace(found, **known)


@pytest.mark.proves("S5.264")
async def test_merging_keeps_what_is_not_in_the_file(world: World) -> None:
    await apply(world, "name: a, target: deploy*, effect: deny", "name: b, target: mail, effect: allow")
    merged = await apply(
        world, "name: c, target: refund, effect: allow", "name: b, target: mail, effect: deny", merge=True
    )
    assert (merged.version, merged.rows) == (2, 3)
    assert (merged.diff.added, merged.diff.removed, merged.diff.changed) == (1, 0, 2)
    now = await policies.get_policies(world.db, world.admin.actor)
    assert [(one.row.name, one.row.effect) for one in now.rows] == [("c", ALLOW), ("a", DENY), ("b", DENY)]
    # The source of a version is all of it: applied again it changes nothing, and brings it back after another one.
    assert not (await policies.apply_policies(world.db, world.admin.actor, PolicyFile(text=now.source))).changed
    again = await apply(world, "name: b, target: mail, effect: deny", merge=True)
    assert (again.version, again.changed) == (2, False)
    await apply(world)
    back = await policies.apply_policies(world.db, world.admin.actor, PolicyFile(text=now.source))
    assert (back.version, back.rows) == (4, 3)


@pytest.mark.proves("S5.264")
async def test_faults_and_warnings_of_a_merge_are_about_the_file(world: World) -> None:
    await apply(world, "name: all, target: '*', effect: deny")
    shadowed = await apply(
        world, "name: all, target: '*', effect: deny", "name: late, target: mail, effect: deny", merge=True
    )
    assert shadowed.warnings == ["line 3: `late` never matches: `all` before it always does."]
    kept = await apply(world, "name: new, target: refund, effect: allow", merge=True)
    assert kept.warnings == []
    with pytest.raises(InvalidInput, match="line 2: nobody could ever decide"):
        await apply(world, "name: x, target: y, effect: requires_approval, approvers: {roles: [operator]}", merge=True)


@pytest.mark.proves("D.56", "D.58")
async def test_applying_replaces_all_rows_and_keeps_every_version(world: World) -> None:
    first = await apply(world, "name: a, target: deploy*, effect: deny", note="a start")
    assert (first.version, first.changed, first.diff.added) == (1, True, 1)
    same = await apply(world, "name: a, target: 'deploy*', effect: deny")
    assert (same.version, same.changed) == (1, False)
    second = await apply(world, "name: b, target: deploy*, effect: allow")
    assert (second.version, second.diff.added, second.diff.removed) == (2, 1, 1)
    now = await policies.get_policies(world.db, world.admin.actor)
    assert (now.version, [one.row.name for one in now.rows], now.total) == (2, ["b"], 1)
    assert tuple(now.platform) == FIRST_PLATFORM_ROWS
    old = await policies.get_policies(world.db, world.admin.actor, 1)
    assert (old.note, old.applied_by, old.source) == (
        "a start", "Ada", "policies:\n  - {name: a, target: deploy*, effect: deny}\n",
    )  # fmt: skip
    none = await policies.get_policies(world.db, world.admin.actor, 0)
    assert (none.rows, none.source, none.created_at) == ([], "", None)
    listed = await policies.list_policy_versions(world.db, world.admin.actor, None, 10)
    assert [(one.version, one.rows) for one in listed] == [(2, 1), (1, 1)]
    assert [one.version for one in await policies.list_policy_versions(world.db, world.admin.actor, 2, 10)] == [1]
    with pytest.raises(NotFound) as missing:
        await policies.get_policies(world.db, world.admin.actor, 3)
    assert missing.value.code == "policy_version_not_found"
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 100)
    told = [entry.body["data"] for entry in trail if entry.action == "policy_applied" and entry.body]
    assert [(data["version"], data["digest"], data["note"]) for data in told] == [
        (1, old.digest, "a start"), (2, now.digest, None),
    ]  # fmt: skip


@pytest.mark.proves("D.56")
async def test_a_dry_run_and_a_refusal_change_nothing(world: World, admin: asyncpg.Connection) -> None:
    await apply(world, "name: a, target: b, effect: deny")
    before = await digests(admin)
    dry = await apply(world, "name: c, target: b, effect: deny", dry_run=True)
    assert (dry.version, dry.changed, dry.dry_run, dry.diff.added, dry.diff.removed) == (2, True, True, 1, 1)
    refused = {
        "name: a, target: b, efect: deny": "`efect` is not a key",
        "name: a, target: b, effect: requires_approval, quorum: 2": "its quorum of 2 votes could never be met",
        "name: a, target: b, effect: requires_approval, approvers: {roles: [admin]}, quorum: {roles: {approver: 1}}":
            "with 1 vote of approver could never be met",
        "name: a, target: b, effect: requires_approval, escalate_to: [{members: [Zoe]}]": "no active member called `Zoe`",
        "name: a, target: b, effect: requires_approval, clearance: 9": "nobody could ever decide",
        "name: a, target: b, effect: requires_approval, clearance: 1, approvers: {members: [Ada]}": "has clearance 0",
        "name: a, target: b, effect: requires_approval, approvers: {members: [Zoe]}": "no active member called `Zoe`",
        "name: a, target: b, effect: requires_approval, approvers: {roles: [approver]}": "nobody could ever decide",
    }  # fmt: skip
    for row, why in refused.items():
        with pytest.raises(InvalidInput) as error:
            await apply(world, row)
        assert error.value.code == "invalid_policy_file"
        assert why in error.value.message
        assert "line 2" in error.value.message
    with pytest.raises(InvalidInput, match="there is no team `nowhere`; there are main"):
        await policies.apply_policies(world.db, world.admin.actor, PolicyFile(text="teams: {nowhere: []}"))
    with pytest.raises(Stale) as stale:
        await apply(world, "name: c, target: b, effect: deny", expected_version=0)
    assert "Version 1 holds by now" in stale.value.message
    assert await digests(admin) == before


@pytest.mark.proves("D.110")
async def test_all_that_a_row_says_is_kept_and_read_back(world: World, admin: asyncpg.Connection) -> None:
    bob = (await world.person(Role.APPROVER, name="Bob")).actor.user_account_id
    assert bob is not None
    said = (
        "quorum: {votes: 2, roles: {admin: 1}}, escalate_before: 2h, channels: [email], standing: false,"
        " template: full_pipeline, escalate_to: [{members: [Bob], owner: true}, {roles: [operator]}]"
    )
    first = await apply(world, f"name: a, target: b, effect: requires_approval, {said}")
    (kept,) = (await policies.get_policies(world.db, world.admin.actor)).rows
    assert kept.row == PolicyRow(
        name="a", target="b", effect=ASK, template=Template.FULL_PIPELINE, escalation_seconds=7200, channels=("email",),
        quorum=Quorum(votes=2, roles=(RoleVotes(role=Role.ADMIN, votes=1),)), standing=False,
        escalate_to=(Approvers(owner=True, members=(bob,)), Approvers(roles=(Role.OPERATOR,))),
    )  # fmt: skip
    again = await apply(world, f"name: a, target: b, effect: requires_approval, {said}")
    assert (first.version, again.version, again.changed) == (1, 1, False)
    other = await apply(world, "name: a, target: b, effect: requires_approval, template: full_pipeline")
    assert {field.field for field in other.diff.changes[0].fields} == {
        "quorum", "escalation_seconds", "escalate_to", "channels", "standing",
    }  # fmt: skip
    await admin.execute(
        "insert into platform_policy (position, name, target, effect, quorum, escalation_seconds, escalate_to, channels,"
        " standing) values (2, 'two', 'pay', 'requires_approval', '{\"votes\": 2}', 60,"
        " '[{\"roles\": [\"admin\"]}]', '{webhook}', false)"
    )
    _, compiled = await PolicyCache().current(world.db, world.org_id)
    terms = compiled.decide(facts("pay")).terms
    assert terms is not None
    assert (terms.quorum, terms.channels, terms.standing) == (Quorum(votes=2), ("webhook",), False)
    assert (terms.escalation_seconds, terms.escalations) == (60, (Approvers(roles=(Role.ADMIN,)),))


@pytest.mark.proves("D.57")
async def test_who_could_decide_is_asked_of_those_who_are_active(world: World) -> None:
    row = "name: a, target: b, effect: requires_approval, template: critical_path, clearance: 2"
    with pytest.raises(InvalidInput):
        await apply(world, row)
    bob = await world.person(Role.APPROVER, name="Bob", clearance=2)
    warned = await apply(world, row)
    assert warned.warnings == ["line 2: Bob alone may decide this, and not what they asked for themselves."]
    assert bob.actor.user_account_id is not None
    await orgs.update_member(world.db, world.admin.actor, bob.actor.user_account_id, MemberChange(active=False), None)
    with pytest.raises(InvalidInput, match="nobody could ever decide"):
        await apply(world, row, note="the same rows, and nobody left")


async def test_only_stewards_and_admins_apply_and_only_staff_reads(world: World) -> None:
    steward = (await world.person(Role.STEWARD, name="Sue")).actor
    assert (await policies.apply_policies(world.db, steward, file_of("name: a, target: b, effect: deny"))).version == 1
    for role in (Role.OPERATOR, Role.APPROVER, Role.MEMBER):
        actor = (await world.person(role, name=role.title())).actor
        with pytest.raises(Forbidden):
            await policies.apply_policies(world.db, actor, file_of())
    member = (await world.person(Role.MEMBER, name="Mel")).actor
    with pytest.raises(Forbidden):
        await policies.get_policies(world.db, member)


async def test_orgs_do_not_see_each_others_policies(world: World, other: World) -> None:
    await apply(world, "name: a, target: b, effect: deny")
    assert (await policies.get_policies(other.db, other.admin.actor)).version == 0
    with pytest.raises(NotFound):
        await policies.get_policies(other.db, other.admin.actor, 1)
    book = PolicyCache()
    assert (await book.current(other.db, other.org_id))[1].decide(facts("b")).rule == "default:owner"
    with pytest.raises(Conflict) as refused:
        await book.at(other.db, other.org_id, "1.1")
    assert refused.value.code == "policy_corrupt", "a version that is another org's was never in force here"


@pytest.mark.proves("D.58")
async def test_applies_that_race_are_ordered_or_told(world: World) -> None:
    rows = [f"name: r{n}, target: b, effect: deny" for n in range(12)]
    applied = await asyncio.gather(*(apply(world, row) for row in rows))
    assert sorted(one.version for one in applied) == list(range(1, 13))
    last = max(zip(applied, rows, strict=True), key=lambda pair: pair[0].version)[1]
    now = await policies.get_policies(world.db, world.admin.actor)
    assert (now.version, f"  - {{{last}}}\n" in now.source) == (12, True)
    outcomes = await asyncio.gather(
        *(apply(world, row, expected_version=12) for row in ["name: x, target: b, effect: deny", "name: y, target: b, effect: deny"]),
        return_exceptions=True,
    )  # fmt: skip
    assert sorted(type(one).__name__ for one in outcomes) == ["Applied", "Stale"]
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


async def test_a_repeated_request_is_applied_once(world: World) -> None:
    once = IdempotencyKey(key="k", fingerprint=bytes(32))
    file = file_of("name: a, target: b, effect: deny")
    first = await policies.apply_policies(world.db, world.admin.actor, file, once)
    await apply(world)
    again = await policies.apply_policies(world.db, world.admin.actor, file, once)
    assert again == first
    assert (await policies.get_policies(world.db, world.admin.actor)).version == 2
    other = IdempotencyKey(key="k", fingerprint=b"x" * 32)
    with pytest.raises(Conflict):
        await policies.apply_policies(world.db, world.admin.actor, file_of(), other)


@pytest.mark.proves("D.58")
async def test_nothing_of_a_version_can_be_changed(world: World, db: Database) -> None:
    await apply(world, "name: a, target: b, effect: deny")
    for statement in (
        "update policy set effect = 'allow'", "delete from policy", "update policy_version set source = ''",
        "delete from policy_version", "update platform_policy set effect = 'allow'", "delete from platform_policy",
        "insert into platform_policy (position, name, target, effect) values (9, 'a', '*', 'allow')",
        "update platform_policy_version set version = 9", "update job set policies = null",
    ):  # fmt: skip
        with pytest.raises(Exception, match=r"permission denied|not allowed"):
            async with db.transaction(world.org_id) as tx:
                await tx.rows(statement)


# The book --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.55")
async def test_verdicts_come_from_a_compiled_version_without_a_query(world: World, admin: asyncpg.Connection) -> None:
    await apply(world, "name: a, target: deploy*, effect: deny")
    book = PolicyCache()
    version, compiled = await book.current(world.db, world.org_id)
    assert version == compiled.version == "1.1"
    assert compiled.decide(facts()).rule == "org:a@1.1"
    assert await admin.fetchval("select count(*) from platform_policy") == 1
    # Whatever happens to the database: what was asked for once is there.
    broken = Database(None)
    assert await book.at(broken, world.org_id, "1.1") is compiled
    await apply(world, "name: a, target: deploy*, effect: allow")
    assert (await book.current(world.db, world.org_id))[1].decide(facts()).verdict is ALLOW
    assert (await book.at(world.db, world.org_id, "1.1")).decide(facts()).verdict is DENY, "versions stay"


async def test_the_platforms_rows_have_a_version_that_rises_with_them(world: World, admin: asyncpg.Connection) -> None:
    book = PolicyCache()
    before, old = await book.current(world.db, world.org_id)
    await admin.execute(
        "insert into platform_policy (position, name, target, effect) values (2, 'no-rm', 'rm*', 'deny')"
    )
    after, new = await book.current(world.db, world.org_id)
    assert (before, after) == ("0.1", "0.2")
    assert old.decide(facts("rm")).rule == "default:owner"
    assert new.decide(facts("rm")).rule == "platform:no-rm@0.2"
    critical = new.decide(facts(risk=Risk.CRITICAL))
    assert critical.terms is not None
    assert (critical.verdict, critical.terms.template) == (ASK, Template.CRITICAL_PATH)


async def test_those_who_ask_at_once_load_once_and_a_cancelled_one_takes_nothing_away(world: World) -> None:
    await apply(world, "name: a, target: deploy*, effect: deny")
    book = PolicyCache()
    loads = 0
    original = book._load

    async def counted(db: Database, key: tuple[UUID, str]) -> CompiledPolicies:
        nonlocal loads
        loads += 1
        return await original(db, key)

    book._load = counted  # type: ignore[method-assign]
    waiting = [asyncio.create_task(book.at(world.db, world.org_id, "1.1")) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert len({id(one) for one in done[1:]}) == 1
    assert loads == 1


async def test_a_failed_load_is_tried_again(world: World) -> None:
    book = PolicyCache()
    with pytest.raises(AttributeError):
        await book.at(Database(None), world.org_id, "0.1")
    assert (await book.at(world.db, world.org_id, "0.1")).version == "0.1"


async def test_the_book_forgets_what_was_not_asked_for_by_entries_and_by_rows(world: World) -> None:
    for n in range(1, 5):
        await apply(world, *(f"name: r{i}-{n}, target: t{i}, effect: deny" for i in range(10)))
    few = PolicyCache(max_entries=2)
    for version in ("1.1", "2.1", "1.1", "3.1"):
        await few.at(world.db, world.org_id, version)
    assert [version for (_, version), _ in few._versions.items()] == ["1.1", "3.1"]
    one = (await few.at(world.db, world.org_id, "1.1")).rows
    small = PolicyCache(max_rows=one * 5 // 2)  # room for two of them
    for version in ("1.1", "2.1", "3.1"):
        await small.at(world.db, world.org_id, version)
    assert [version for (_, version), _ in small._versions.items()] == ["2.1", "3.1"]


# Teams, requests, explain ----------------------------------------------------------------------------------------


@pytest.mark.proves("D.54")
async def test_explain_asks_for_the_agents_teams_and_the_published_tool(world: World) -> None:
    await orgs.create_team(world.db, world.admin.actor, TeamDraft(slug="payments", name="Payments", parent="main"))
    await agents.update_agent(world.db, world.admin.actor, "deployer", AgentChange(team="payments"), None)
    text = """
policies:
  - {name: org, target: '*', effect: deny}
teams:
  main:
    - {name: parent, target: 'deploy', effect: requires_approval, template: dev_review}
  payments:
    - {name: sub, target: 'deploy', effect: allow, when: args.environment == "staging"}
"""
    await policies.apply_policies(world.db, world.admin.actor, PolicyFile(text=text))

    async def ask(**asked: Any) -> Any:
        request = ExplainRequest(**({"agent": "deployer", "tool": "deploy"} | asked))
        return await simulations.explain_policies(world.db, world.admin.actor, request)

    unknown = await ask(arguments={"environment": "staging"})
    assert not unknown.published
    assert unknown.explanation.decision.rule == "team:sub@1.1"
    published = ToolVersion(
        app="plane", name="deploy", digest="a" * 64, description="", parameters={}, read_only=False,
        risk=Risk.CRITICAL, timeout_seconds=1, on_uncertain=OnUncertain.ASK_HUMAN,
    )  # fmt: skip
    await agents_store.publish_tools(world.db, [published])
    critical = await ask(arguments={"environment": "staging"})
    assert (critical.published, critical.risk) == (True, Risk.CRITICAL)
    assert critical.explanation.decision.rule == "platform:critical-needs-approval@1.1"
    low = await ask(arguments={"environment": "staging"}, risk=Risk.LOW)
    assert low.explanation.decision.verdict is ALLOW
    production = await ask(arguments={"environment": "production"})
    assert production.explanation.decided_by == "parent_team:parent@1.1"
    mine = RequestPolicy(name="mine", target="*", effect=DENY)
    assert (await ask(policies=[mine])).explanation.decision.rule == "request:mine@1.1"
    with pytest.raises(NotFound):
        await ask(agent="nobody")


@pytest.mark.proves("D.59")
async def test_a_job_keeps_what_its_request_demands_also_when_it_is_submitted_again(world: World) -> None:
    mine = RequestPolicy(
        name="careful", target="deploy*", effect=ASK, when='args.environment == "production"', clearance=3,
        timeout_seconds=600,
    )  # fmt: skip
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", policies=[mine]))
    wanted = PolicyRow(
        name="careful", target="deploy*", effect=ASK, condition='args.environment == "production"',
        required_clearance=3, timeout_seconds=600,
    )  # fmt: skip
    assert job.policies == [wanted]
    await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())
    again = await jobs.resubmit(world.db, world.admin.actor, job.id)
    assert again.policies == [wanted]
    bare = await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer"))
    assert bare.policies is None
    async with world.db.transaction(world.org_id) as tx:
        stored = await tx.value("select policies from job where id = $1", again.id)
    assert request_rows(stored) == [wanted]
    assert request_rows(None) == []


@pytest.mark.proves("D.59", "D.113")
@pytest.mark.parametrize(
    "said",
    [
        {"effect": "allow"}, {"when": "x == 1"}, {"when": "args.l.map(x, x) == []"}, {"target": ""},
        {"timeout_seconds": 0}, {"timeout_seconds": 10**7}, {"clearance": 1001}, {"approvers": {"owner": True}},
        {"final": True}, {"name": "a b"}, {"quorum": 0}, {"quorum": 11}, {"quorum": "2"}, {"quorum": True},
        {"quorum": {"votes": 1, "roles": {"admin": 2}}}, {"quorum": {"roles": {"guest": 1}}}, {"quorum": {"vote": 1}},
        {"escalate_before_seconds": -1}, {"escalate_before_seconds": 10**7}, {"standing": True}, {"channels": ["Email"]},
        {"channels": ["x"] * 21}, {"approvers": []}, {"approvers": ["Ada"]}, {"approvers": [str(UUID(int=n)) for n in range(21)]},
        {"action": ""}, {"action": " "}, {"action": "x" * 201}, {"action": "two\nlines"}, {"action": "a\x00b"},
        {"action": "a\x1b[31m"}, {"action": "\ud800"}, {"details": []}, {"details": {"a": "x" * 8200}},
        {"details": {"a": float("nan")}}, {"details": {"a": "\x00"}}, {"escalate_to": []},
    ],
)  # fmt: skip
def test_a_request_that_would_loosen_or_cannot_work_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobDraft(agent="deployer", policies=[RequestPolicy(**({"name": "a", "target": "*", "effect": "deny"} | said))])


@pytest.mark.proves("D.113")
async def test_a_request_names_its_approvers_what_is_to_happen_and_how_many_must_agree(world: World) -> None:
    bob = (await world.person(Role.MEMBER, name="Bob")).actor.user_account_id
    assert bob is not None
    mine = RequestPolicy(
        name="pay", target="pay", effect=ASK, approvers=[bob, bob], action="Pay the invoice", details={"amount": 9.5},
        quorum=QuorumDraft(roles={Role.MEMBER: 1}), escalate_before_seconds=60, standing=False, channels=["email", "email"],
    )  # fmt: skip
    wanted = PolicyRow(
        name="pay", target="pay", effect=ASK, named=(bob,), action="Pay the invoice", details={"amount": 9.5},
        quorum=Quorum(votes=1, roles=(RoleVotes(role=Role.MEMBER, votes=1),)), escalation_seconds=60, standing=False,
        channels=("email",),
    )  # fmt: skip
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", policies=[mine]))
    assert job.policies == [wanted]
    two = RequestPolicy(name="two", target="pay", effect=ASK, quorum=2)
    assert two.as_row().quorum == Quorum(votes=2)
    asked = ExplainRequest(agent="deployer", tool="pay", policies=[mine])
    terms = (await simulations.explain_policies(world.db, world.admin.actor, asked)).explanation.decision.terms
    assert terms is not None
    assert (terms.approvers, terms.action) == (Approvers(members=(bob,)), "Pay the invoice")
    for nobody in (UUID(int=9), (await world.person(Role.GUEST, name="Gus")).actor.user_account_id):
        assert nobody is not None
        draft = JobDraft(agent="deployer", policies=[replace(mine, approvers=[bob, nobody])])
        with pytest.raises(InvalidInput, match=f"no active member with the id {nobody}"):
            await jobs.submit(world.db, world.admin.actor, draft)


async def test_a_platform_admin_who_applies_is_visible_as_such(world: World) -> None:
    outsider = replace(world.admin.actor, kind=ActorKind.PLATFORM, user_account_id=None)
    await policies.apply_policies(world.db, outsider, file_of("name: a, target: b, effect: deny"))
    assert (await policies.get_policies(world.db, world.admin.actor)).applied_by == outsider.name
