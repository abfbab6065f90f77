"""Applying and listing policies: an org's, and the platform's, which limit every org."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import orjson

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import Conflict, InvalidInput, Stale
from cortex_plane.kernel.fields import adapter, parse, to_json
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.shares import reading_policies
from cortex_plane.policies import store as policies_store
from cortex_plane.policies.files import (
    MAX_WARNINGS,
    Draft,
    Person,
    faults_of,
    place,
    place_for_platform,
    policy_faults,
    read,
    warnings_of,
    write,
)
from cortex_plane.policies.model import versions
from cortex_plane.policies.model.policies import (
    POLICIES,
    Approvers,
    Author,
    ChangeAction,
    ChangeDraft,
    PendingChange,
    PolicyRow,
    StoredChange,
)
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.rules.simulations import PolicyReplay
from cortex_plane.policies.store import InForce, queries
from cortex_plane.policies.verbs.changes import cancel_overtaken, overtaken, propose
from cortex_plane.policies.verbs.policy_cache import current_policies
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, ActorKind, Fact, Forged, Permission
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs.frame import every_org, read_verb, require_found, transaction_verb, verb

MAX_SHOWN_GROUPS = 50
"""Kinds of changed calls that a request for approval shows."""


def digest_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


async def read_file(text: str) -> Draft:
    """In a thread, and before any lock is taken: a large file takes seconds to read."""
    return await reading_policies.run(read, text)


@verb(Permission.POLICY_WRITE)
async def apply_policies(
    db: Database, actor: Actor, file: versions.PolicyFile, once: IdempotencyKey | None = None
) -> versions.Applied:
    """The org's rows become those of the file, all or none; where the org says so, once somebody else approves it. What is refused
    changes nothing and leaves no trace."""
    draft = await read_file(file.text)
    async with db.transaction(actor.org_id) as tx:
        now = require_found(await policies_store.lock_policy_version(tx), "org")
        if file.dry_run or not now.asks:
            return await _apply(tx, actor, file, draft, now, once)
    # Nobody waits for a simulation with a lock.
    simulation = await _simulate(db, actor, draft, merge=file.merge)
    async with db.transaction(actor.org_id) as tx:
        now = require_found(await policies_store.lock_policy_version(tx), "org")
        return await _apply(tx, actor, file, draft, now, once, simulation if now.asks else None)


async def _apply(
    tx: Transaction, actor: Actor, file: versions.PolicyFile, draft: Draft, now: InForce, once: IdempotencyKey | None,
    simulation: versions.Simulation | None = None,
) -> versions.Applied:  # fmt: skip
    """Under the lock of the org's policies; with a simulation it is proposed."""
    if once is not None and not file.dry_run:
        earlier = await tenancy_store.claim_idempotency_key(tx, actor.key_id, "policies.apply", once)
        if earlier is not None:
            return parse(versions.Applied, earlier)
    if file.expected_version is not None and file.expected_version != now.version:
        raise Stale(
            f"Version {now.version} holds by now; you expected {file.expected_version}.",
            hint="Look at what changed with `cortex policy show`, then apply your file again.",
            current_version=now.version,
        )
    change = await _compare(tx, draft, now, merge=file.merge)
    if change.differs and simulation is not None:
        waits = await _propose(tx, actor, file, change, simulation)
        result = _applied(file, change, now.version, changed=False, waits=waits)
    elif change.differs and not file.dry_run:
        author = Author(actor.name, actor.identity)
        facts = await _put_in_force(tx, actor, author, change.text or file.text, file.note, change)
        await proof_store.append_to_org(tx, *facts)
        result = _applied(file, change, change.version, changed=True)
    else:
        result = _applied(file, change, change.version, changed=change.differs)
    if once is not None and not file.dry_run:
        settled = orjson.loads(to_json(result))
        await tenancy_store.settle_idempotency_key(tx, actor.key_id, "policies.apply", once, settled)
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyChange:
    """What a file would change, under the lock of the org's policies."""

    base: int
    """The version that holds."""
    version: int
    """The version that it would become; the one that holds, where nothing differs."""
    differs: bool
    rows: list[versions.PlacedRow]
    rows_digest: str
    diff: versions.PolicyDiff
    warnings: list[str]
    text: str | None
    """The whole file, where the one that was sent is merged with what holds."""


async def _compare(tx: Transaction, draft: Draft, now: InForce, *, merge: bool = False) -> PolicyChange:
    # What somebody put in force by hand counts for nothing: applying a file is how it is repaired.
    before = await policies_store.list_rows(tx, now.version) if now.version and now.true else []
    if merge and not now.true:
        raise Conflict(
            "The policies in force were not applied by the plane: none of them can be kept.",
            code="policy_corrupt",
            hint="Look at `cortex audit verify`, then apply a whole file without `merge`.",
        )
    rows, warnings = await examine(tx, draft, before if merge else ())
    diff = await asyncio.to_thread(versions.difference, before, rows)
    differs = bool(diff.added or diff.removed or diff.changed) or not now.true
    return PolicyChange(
        base=now.version, version=now.newest + 1 if differs else now.version, differs=differs, rows=rows,
        rows_digest=await asyncio.to_thread(versions.rows_digest, rows), diff=diff, warnings=warnings,
        text=await asyncio.to_thread(write, rows) if merge else None,
    )  # fmt: skip


def _applied(
    file: versions.PolicyFile, change: PolicyChange, version: int, *, changed: bool, waits: PendingChange | None = None
) -> versions.Applied:
    return versions.Applied(
        version=version, changed=changed, dry_run=file.dry_run, rows=len(change.rows), diff=change.diff,
        warnings=change.warnings, waits=waits,
    )  # fmt: skip


async def _put_in_force(
    tx: Transaction, actor: Actor, author: Author, source: str, note: str | None, change: PolicyChange, *,
    approval_id: UUID | None = None,
) -> list[Fact]:  # fmt: skip
    """Under the lock of the org's policies. What others proposed on top of the version before is over."""
    version, digest = change.version, digest_of(source)
    about = (source, digest, len(change.rows), note, author.name, author.identity)
    await tx.rows(queries.insert_policy_version, tx.org, version, *about)
    await tx.rows(queries.insert_rows, tx.org, version, [versions.placed_as_json(row) for row in change.rows])
    await policies_store.sign_policy_version(tx, version)
    await policies_store.set_policy_version(tx, version)
    approved = {} if approval_id is None else {"author": author.name, "approval": str(approval_id)}
    diff = change.diff
    fact = Fact.of(
        actor, "policy_applied", version=version, digest=digest, rows=len(change.rows), rows_digest=change.rows_digest,
        added=diff.added, removed=diff.removed, changed=diff.changed, note=note, **approved,
    )  # fmt: skip
    reason = f"version {version} of the policies was applied meanwhile"
    action = ChangeAction.APPLY_POLICIES
    return [fact, *await cancel_overtaken(tx, actor, action, POLICIES, reason, besides=approval_id)]


async def _simulate(db: Database, actor: Actor, draft: Draft, *, merge: bool) -> versions.Simulation:
    """What it would have changed about the calls of the last week."""
    with db.heavy_read(actor.org_id):
        async with db.transaction(actor.org_id, snapshot=True) as tx:
            version = await policies_store.policies_in_force(tx) if merge else None
            keep = await policies_store.list_rows(tx, version) if version else ()
            rows, warnings = await examine(tx, draft, keep)
            return await simulate_rows(tx, rows, warnings, None, None, versions.DEFAULT_CALLS)


async def _propose(
    tx: Transaction, actor: Actor, file: versions.PolicyFile, change: PolicyChange, simulation: versions.Simulation
) -> PendingChange:  # fmt: skip
    source = change.text or file.text
    digest = digest_of(source)
    if simulation.version.partition(".")[0] != str(change.base):
        raise Stale(f"Version {change.base} holds by now.", hint="Look at what changed, then apply your file again.")
    effect = orjson.loads(to_json(replace(simulation, groups=simulation.groups[:MAX_SHOWN_GROUPS])))
    arguments = {
        "digest": digest, "rows": len(change.rows), "rows_digest": change.rows_digest, "instead_of": change.base, "note": file.note,
        "diff": orjson.loads(to_json(change.diff)), "effect": effect,
    }  # fmt: skip
    return await propose(tx, actor, ChangeDraft(
        action=ChangeAction.APPLY_POLICIES, target=POLICIES, summary="Apply policies",
        question="May these policies hold? Changes of policies need a second person in this org.",
        rule="org setting policy_changes", approvers=Approvers(roles=(Role.ADMIN, Role.STEWARD)), arguments=arguments,
        source=source, name="policies.yaml", digest=digest, base=str(change.base), note=file.note,
    ))  # fmt: skip


async def apply_proposed(
    tx: Transaction, actor: Actor, approval: Approval, stored: StoredChange, draft: Draft
) -> list[Fact]:
    """Somebody approved it: it holds from now on. Raises ``Conflict`` where another version holds by now, or where the names in the
    file stand for others than those that its approvers saw."""
    now = require_found(await policies_store.lock_policy_version(tx), "org")
    change = await _compare(tx, draft, now)
    if str(now.version) != stored.base:
        raise overtaken("Another version of the policies was applied")
    if change.rows_digest != approval.arguments["rows_digest"]:
        raise overtaken("A name in the file came to stand for somebody else")
    author = Author(stored.proposed_by, stored.proposed_by_id)
    return await _put_in_force(tx, actor, author, stored.source, stored.note, change, approval_id=approval.id)


async def examine(
    tx: Transaction, draft: Draft, keep: Sequence[versions.PlacedRow] = ()
) -> tuple[list[versions.PlacedRow], list[str]]:
    """The rows of a file with the names in them looked up, among those to ``keep``, and what seems odd about them. Raises
    ``InvalidInput`` that names every line at fault."""
    people = adapter(list[Person]).validate_python([*map(dict, await tx.rows(queries.list_people))])
    ids = await tenancy_store.find_teams(tx, list(draft.team_lines))
    slugs = {slug: ids[slug] for slug in draft.team_lines if slug in ids}
    if len(slugs) < len(draft.team_lines):
        slugs = {team.slug: team.id for team in (await tenancy_store.list_teams(tx, None, 1000)).items} | slugs
    return await asyncio.to_thread(_examine, draft, slugs, people, await policies_store.platform_rows(tx), keep)


def _examine(
    draft: Draft, slugs: dict[str, UUID], people: list[Person], platform: list[PolicyRow],
    keep: Sequence[versions.PlacedRow],
) -> tuple[list[versions.PlacedRow], list[str]]:  # fmt: skip
    own, own_lines = place(draft, slugs, people)
    faults = policy_faults()
    for at, message in faults_of(own, people):
        faults.add(own_lines[at], message)
    faults.raise_any()
    rows = versions.merge_rows(keep, own) if keep else own
    names = {(row.team_id, row.row.name): line for row, line in zip(own, own_lines, strict=True)}
    lines = [names.get((row.team_id, row.row.name)) for row in rows]
    # Rows that are kept have no line, and were looked at when they were applied.
    found = ((line, message) for at, message in warnings_of(rows, people, platform) if (line := lines[at]) is not None)
    return rows, [f"line {line}: {message}" for line, message in sorted(itertools.islice(found, MAX_WARNINGS))]


list_policy_versions = read_verb(Permission.POLICY_READ, policies_store.list_policy_versions)


@verb(Permission.POLICY_READ)
async def get_policies(db: Database, actor: Actor, version: int | None = None) -> versions.PolicyVersionDetails:
    """One version; without a number, the one that holds now."""
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        number = version
        if number is None:
            number = int(require_found(await policies_store.current_version(tx), "org").partition(".")[0])
        platform = await policies_store.platform_rows(tx)
        if number == 0:
            empty: Row = dict.fromkeys(("digest", "note", "applied_by", "created_at"))
            return versions.PolicyVersionDetails(version=0, source="", total=0, rows=[], platform=platform, **empty)
        row = require_found(await tx.row(queries.get_policy_version, number), "policy_version")
        rows = await policies_store.list_rows(tx, number, versions.MAX_SHOWN_ROWS)
        return parse(versions.PolicyVersionDetails, {**row, "total": row["rows"], "rows": rows, "platform": platform})


async def forged_policies(db: Database) -> list[str]:
    """The slugs of the orgs whose policies were not put in force by the plane: nothing is allowed there."""
    slugs = []
    async for org in every_org(db):
        try:
            async with db.transaction(org.id) as tx:
                if version := await policies_store.policies_in_force(tx):
                    await policies_store.require_true_rows(tx, version)
        except Forged:
            slugs.append(org.slug)
    return slugs


@verb(Permission.PLATFORM_POLICY_WRITE)
async def apply_platform_policies(db: Database, actor: Actor, file: versions.PolicyFile) -> versions.Applied:
    """The platform's rows become those of the file, all or none. The trail of every org says so: they hold in each of them."""
    draft = await read_file(file.text)
    rows, warnings = await asyncio.to_thread(place_for_platform, draft)
    async with db.transaction(actor.org_id) as tx:
        version: int = await tx.value(queries.lock_platform_policies)
        if file.expected_version is not None and file.expected_version != version:
            raise Stale(
                f"Version {version} of the platform's policies holds by now; you expected {file.expected_version}.",
                hint="Look at what changed with `cortex platform policy show`, then apply your file again.",
                current_version=version,
            )
        before, text = versions.of_platform(await policies_store.platform_rows(tx)), file.text
        if file.merge:
            rows = versions.of_platform([placed.row for placed in versions.merge_rows(before, rows)])
            text = await asyncio.to_thread(write, rows)
        diff = await asyncio.to_thread(versions.difference, before, rows)
        differs = bool(diff.added or diff.removed or diff.changed)
        if differs and not file.dry_run:
            version = await tx.value(queries.replace_platform_policies, [versions.placed_as_json(row) for row in rows])
            # Whoever holds a platform key is nobody in the other orgs.
            platform = replace(actor, kind=ActorKind.PLATFORM, user_account_id=None)
            fact = Fact.of(
                platform, "platform_policy_applied", version=version, digest=digest_of(text), rows=len(rows), added=diff.added,
                removed=diff.removed, changed=diff.changed, note=file.note,
            )  # fmt: skip
            await proof_store.append_to_every_org(tx, fact)
    return versions.Applied(
        version=version, changed=differs, dry_run=file.dry_run, rows=len(rows), diff=diff, warnings=warnings
    )


@transaction_verb(Permission.PLATFORM_POLICY_WRITE)
async def get_platform_policies(tx: Transaction, _: Actor) -> versions.PlatformPolicies:
    version = int((await policies_store.current_version(tx) or "").split(".")[1])
    return versions.PlatformPolicies(version=version, rows=await policies_store.platform_rows(tx))


CALLS_AT_ONCE = 100


async def simulate_rows(
    tx: Transaction, rows: list[versions.PlacedRow], warnings: list[str], since: datetime | None, until: datetime | None, limit: int, *,
    within_seconds: int | None = None,
) -> versions.Simulation:  # fmt: skip
    """In a snapshot: calls, people and policies are those of one moment. The last week, where no span is named."""
    since, until = await _time_span(tx, since, until, within_seconds)
    before = await current_policies(tx)
    replay = PolicyReplay(before, await _compile_proposed(tx, before.version, rows))
    is_cut = await _replay_calls(tx, replay, since, until, limit)
    groups = await asyncio.to_thread(replay.groups)
    return versions.Simulation(
        version=before.version,
        rows=len(rows),
        warnings=warnings,
        since=since,
        until=until,
        stopped=is_cut,
        oldest=replay.oldest,
        totals=replay.totals,
        groups=groups,
        total_groups=replay.total_groups,
        left_out=replay.left_out,
    )


async def _time_span(
    tx: Transaction, since: datetime | None, until: datetime | None, within_seconds: int | None
) -> tuple[datetime, datetime]:
    until = until or await tx.value(queries.simulation_start)
    since = since or until - timedelta(seconds=within_seconds or versions.DEFAULT_SECONDS)
    if since >= until:
        raise InvalidInput(
            f"The time span is empty: it begins at {since.isoformat()} and ends at {until.isoformat()}.",
            hint="Let `since` be earlier than `until`; without `until` it ends now.",
        )
    return since, until


async def _compile_proposed(tx: Transaction, version: str, rows: list[versions.PlacedRow]) -> CompiledPolicies:
    """As they would hold with the platform's rows of now."""
    org_version, _, platform_version = version.partition(".")
    name = f"{int(org_version) + 1}.{platform_version}"
    platform = await policies_store.platform_rows(tx)
    return await asyncio.to_thread(lambda: CompiledPolicies(versions.policy_set(name, rows, platform)))


async def _replay_calls(tx: Transaction, replay: PolicyReplay, since: datetime, until: datetime, limit: int) -> bool:
    """Whether there are more calls than ``limit``. Evaluating conditions takes time: in a thread."""
    remaining = limit
    async with aclosing(policies_store.list_past_calls(tx, since, until, limit + 1, CALLS_AT_ONCE)) as batches:
        async for calls in batches:
            await asyncio.to_thread(replay.look_at, calls[: max(0, remaining)])
            remaining -= len(calls)
    return remaining < 0
