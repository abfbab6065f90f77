"""Applying, listing, explaining and simulating policies."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.tools import Confirmed, Risk, ToolVersion, highest_risk
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import InvalidInput, Stale
from cortex_plane.kernel.fields import parse, to_json
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.shares import reading_policies
from cortex_plane.policies import store as policies_store
from cortex_plane.policies.files import Draft, place, policy_faults, read
from cortex_plane.policies.model.policies import CallFacts, PolicyRow
from cortex_plane.policies.model.versions import (
    DEFAULT_SECONDS,
    MAX_SHOWN_ROWS,
    Applied,
    Explained,
    ExplainRequest,
    PlacedRow,
    PolicyFile,
    PolicyVersion,
    PolicyVersionDetails,
    Simulation,
    SimulationRequest,
    difference,
    policy_set,
    rows_digest,
)
from cortex_plane.policies.rules.checks import MAX_WARNINGS, Person, faults_of, warnings_of
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.rules.simulations import Replay
from cortex_plane.policies.store import InForce
from cortex_plane.policies.verbs.policy_cache import book, compiled, load, policy_corrupt, require_in_force
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.sessions.model.sessions import SessionKind
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs.frame import every_org, require_found, verb


@verb(Permission.POLICY_WRITE)
async def apply_policies(
    db: Database, actor: Actor, file: PolicyFile, once: IdempotencyKey | None = None
) -> Applied:
    """The org's rows become those of the file, all or none. What is refused changes nothing and leaves no trace."""
    # A large file takes seconds to read: nobody waits for it with a lock, and nothing else stands still.
    draft = await reading_policies.run(read, file.text)
    digest = hashlib.sha256(file.text.encode()).hexdigest()
    async with db.transaction(actor.org_id) as tx:
        if once is not None and not file.dry_run:
            earlier = await orgs_store.claim_idempotency_key(tx, actor.key_id, "policies.apply", once)
            if earlier is not None:
                return parse(Applied, earlier)
        now = require_found(await policies_store.lock_policy_version(tx), "org")
        if file.expected_version is not None and file.expected_version != now.version:
            raise Stale(
                f"Version {now.version} holds by now; you expected {file.expected_version}.",
                hint="Look at what changed with `cortex policy show`, then apply your file again.",
                current_version=now.version,
            )
        applied = await _apply_policies(tx, actor, file, draft, digest, now)
        if once is not None and not file.dry_run:
            await orgs_store.settle_idempotency_key(
                tx, actor.key_id, "policies.apply", once, _as_json(applied)
            )
        return applied


async def _apply_policies(
    tx: Transaction, actor: Actor, file: PolicyFile, draft: Draft, digest: str, now: InForce
) -> Applied:
    # What somebody put in force by hand counts for nothing: applying a file is how it is repaired.
    before = await policies_store.list_rows(tx, now.version) if now.version and now.true else []
    rows, warnings = await examined(tx, draft)
    diff = await asyncio.to_thread(difference, before, rows)
    changed = bool(diff.added or diff.removed or diff.changed) or not now.true
    version = now.newest + 1 if changed else now.version
    if changed and not file.dry_run:
        await policies_store.insert_policies(
            tx, version, rows, file.text, digest, file.note, actor.name, actor.identity
        )
        await proof_store.append_to_org(
            tx,
            Fact.of(
                actor, "policy_applied", version=version, digest=digest, rows=len(rows),
                rows_digest=await asyncio.to_thread(rows_digest, rows), added=diff.added,
                removed=diff.removed, changed=diff.changed, note=file.note,
            ),
        )  # fmt: skip
    return Applied(
        version=version,
        changed=changed,
        dry_run=file.dry_run,
        rows=len(rows),
        diff=diff,
        warnings=warnings,
    )


async def examined(tx: Transaction, draft: Draft) -> tuple[list[PlacedRow], list[str]]:
    """The rows of a file with the names in them looked up, and what seems odd about them. Raises ``InvalidInput`` that
    names every line at fault."""
    people = [_person(row) for row in await policies_store.list_people(tx)]
    known = await orgs_store.find_teams(tx, list(draft.team_lines))
    slugs = {slug: known[slug] for slug in draft.team_lines if slug in known}
    if len(slugs) < len(draft.team_lines):
        slugs = {team.slug: team.id for team in (await orgs_store.list_teams(tx, None, 1000)).items} | slugs
    return await asyncio.to_thread(_examined, draft, slugs, people, await policies_store.platform_rows(tx))


def _examined(
    draft: Draft, slugs: dict[str, UUID], people: list[Person], platform: list[PolicyRow]
) -> tuple[list[PlacedRow], list[str]]:
    rows, lines = place(draft, slugs, people)
    faults = policy_faults()
    for at, message in faults_of(rows, people):
        faults.add(lines[at], message)
    faults.raise_any()
    odd = sorted(itertools.islice(warnings_of(rows, people, platform), MAX_WARNINGS))
    return rows, [f"line {lines[at]}: {message}" for at, message in odd]


def _person(row: Row) -> Person:
    return Person(
        id=row["id"],
        name=row["display_name"],
        clearance=row["clearance"],
        roles=frozenset(map(Role, row["roles"])),
    )


def _as_json(applied: Applied) -> dict[str, Any]:
    made: dict[str, Any] = orjson.loads(to_json(applied))
    return made


@verb(Permission.POLICY_READ)
async def list_policy_versions(
    db: Database, actor: Actor, below: int | None, limit: int
) -> list[PolicyVersion]:
    """What was applied, newest first."""
    async with db.transaction(actor.org_id) as tx:
        return await policies_store.list_policy_versions(tx, below, limit)


@verb(Permission.POLICY_READ)
async def get_policies(db: Database, actor: Actor, version: int | None = None) -> PolicyVersionDetails:
    """One version; without a number, the one that holds now."""
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        wanted = version
        if wanted is None:
            wanted = int(require_found(await policies_store.current_version(tx), "org").partition(".")[0])
        platform = await policies_store.platform_rows(tx)
        if wanted == 0:
            return PolicyVersionDetails(
                version=0, digest=None, note=None, applied_by=None, created_at=None, source="", total=0, rows=[],
                platform=platform,
            )  # fmt: skip
        row = require_found(await policies_store.get_policy_version(tx, wanted), "policy_version")
        rows = await policies_store.list_rows(tx, wanted, MAX_SHOWN_ROWS)
        return PolicyVersionDetails(
            version=wanted, digest=row["digest"], note=row["note"], applied_by=row["applied_by"],
            created_at=row["created_at"], source=row["source"], total=row["rows"], rows=rows, platform=platform,
        )  # fmt: skip


@verb(Permission.POLICY_READ)
async def explain_policies(db: Database, actor: Actor, asked: ExplainRequest) -> Explained:
    """What would be said about a call that nobody made, and why."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(await agents_store.get_agent(tx, asked.agent), "agent")
        team = require_found(await orgs_store.get_team(tx, str(agent.team_id)), "team")
        app = SkillSettings.of(agent.skill_config).app
        version = await agents_store.newest_tools(tx, app, asked.tool)
        # Whoever runs elsewhere declares the risk: there, what any app says of the tool counts too.
        external = asked.session_kind == SessionKind.EXTERNAL
        known = (await agents_store.known_risks(tx, [asked.tool])).get(asked.tool) if external else None
    _, compiled = await book.current(db, actor.org_id)
    confirmed = compiled.confirmed.get((app, asked.tool, version.digest)) if version is not None else None
    read_only, risk = _declared(version, confirmed, asked)
    risk = highest_risk(risk, known)
    facts = CallFacts(
        target=asked.tool,
        arguments=asked.arguments,
        read_only=read_only,
        risk=risk,
        agent=agent.slug,
        teams=tuple(id for id in (team.id, team.parent_id) if id is not None),
        session_kind=asked.session_kind,
    )
    request = [policy.as_row() for policy in asked.policies]
    return Explained(
        agent=agent.slug,
        tool=asked.tool,
        read_only=read_only,
        risk=risk,
        published=version is not None,
        explanation=compiled.explain(facts, request),
    )


def _declared(
    version: ToolVersion | None, confirmed: Confirmed | None, asked: ExplainRequest
) -> tuple[bool, Risk]:
    """As the tool was last published, and what a steward confirmed about that, unless the question says otherwise; the
    cautious answer where it never was."""
    read_only = version.read_only if version is not None else False
    risk = version.risk if version is not None else Risk.MEDIUM
    if confirmed is not None:
        read_only, risk = confirmed.read_only, confirmed.risk or risk
    return (
        read_only if asked.read_only is None else asked.read_only,
        risk if asked.risk is None else asked.risk,
    )


async def forged_policies(db: Database) -> list[str]:
    """The slugs of the orgs whose policies were not put in force by the plane: nothing is allowed there."""
    slugs = []
    async for org in every_org(db):
        try:
            async with db.transaction(org.id) as tx:
                version = await policies_store.policies_in_force(tx)
                if version:
                    await policies_store.require_true_rows(tx, version)
        except Forged:
            slugs.append(org.slug)
    return slugs


BATCH = 100


@verb(Permission.POLICY_WRITE, heavy=True)
async def simulate_policies(db: Database, actor: Actor, asked: SimulationRequest) -> Simulation:
    """Nothing is written: calls, people and policies are those of one moment."""
    draft = await reading_policies.run(read, asked.text)
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        since, until = await _span(tx, asked)
        rows, warnings = await examined(tx, draft)
        before = await _current(tx)
        replay = Replay(before, await _proposed(tx, before.version, rows))
        stopped = await _look(tx, replay, since, until, asked.limit)
    groups = await asyncio.to_thread(replay.groups)
    return Simulation(
        version=before.version,
        rows=len(rows),
        warnings=warnings,
        since=since,
        until=until,
        stopped=stopped,
        oldest=replay.oldest,
        totals=replay.totals,
        groups=groups,
        total_groups=replay.total_groups,
    )


async def _span(tx: Transaction, asked: SimulationRequest) -> tuple[datetime, datetime]:
    until = asked.until or await policies_store.simulation_start(tx)
    since = asked.since or until - timedelta(seconds=asked.within_seconds or DEFAULT_SECONDS)
    if since >= until:
        raise InvalidInput(
            f"The time span is empty: it begins at {since.isoformat()} and ends at {until.isoformat()}.",
            hint="Let `since` be earlier than `until`; without `until` it ends now.",
        )
    return since, until


async def _current(tx: Transaction) -> CompiledPolicies:
    version = require_found(await policies_store.current_version(tx), "org")
    known = book.known(tx.org, version)
    if known is not None:
        return known
    try:
        await require_in_force(tx, version)
        return await compiled(await load(tx, version))
    except Forged as forged:
        raise policy_corrupt(forged) from None


async def _proposed(tx: Transaction, version: str, rows: list[PlacedRow]) -> CompiledPolicies:
    """As they would hold with the platform's rows of now."""
    org_version, _, platform_version = version.partition(".")
    name = f"{int(org_version) + 1}.{platform_version}"
    platform = await policies_store.platform_rows(tx)
    return await asyncio.to_thread(lambda: CompiledPolicies(policy_set(name, rows, platform)))


async def _look(tx: Transaction, replay: Replay, since: datetime, until: datetime, limit: int) -> bool:
    """Whether there are more calls than may be looked at. Conditions take time: they run beside everything else."""
    left = limit
    async with aclosing(policies_store.list_past_calls(tx, since, until, limit + 1, BATCH)) as batches:
        async for calls in batches:
            await asyncio.to_thread(replay.look_at, calls[: max(0, left)])
            left -= len(calls)
    return left < 0
