"""Applying and listing policies."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from uuid import UUID

import orjson

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import Conflict, Stale
from cortex_plane.kernel.fields import adapter, parse, to_json
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.shares import reading_policies
from cortex_plane.policies import store as policies_store
from cortex_plane.policies.files import (
    MAX_WARNINGS,
    Draft,
    Person,
    faults_of,
    merge_rows,
    place,
    policy_faults,
    read,
    warnings_of,
    write,
)
from cortex_plane.policies.model import versions
from cortex_plane.policies.model.policies import PolicyRow
from cortex_plane.policies.store import InForce, queries
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Forged, Permission
from cortex_plane.tenancy.verbs.frame import every_org, read_verb, record, require_found, verb


async def read_file(text: str) -> Draft:
    """In a thread, and before any lock is taken: a large file takes seconds to read."""
    return await reading_policies.run(read, text)


@verb(Permission.POLICY_WRITE)
async def apply_policies(
    db: Database, actor: Actor, file: versions.PolicyFile, once: IdempotencyKey | None = None
) -> versions.Applied:
    """The org's rows become those of the file, all or none. What is refused changes nothing and leaves no trace."""
    draft = await read_file(file.text)
    async with db.transaction(actor.org_id) as tx:
        if once is not None and not file.dry_run:
            earlier = await tenancy_store.claim_idempotency_key(tx, actor.key_id, "policies.apply", once)
            if earlier is not None:
                return parse(versions.Applied, earlier)
        now = require_found(await policies_store.lock_policy_version(tx), "org")
        if file.expected_version is not None and file.expected_version != now.version:
            raise Stale(
                f"Version {now.version} holds by now; you expected {file.expected_version}.",
                hint="Look at what changed with `cortex policy show`, then apply your file again.",
                current_version=now.version,
            )
        result = await _apply_policies(tx, actor, file, draft, now)
        if once is not None and not file.dry_run:
            await tenancy_store.settle_idempotency_key(
                tx, actor.key_id, "policies.apply", once, orjson.loads(to_json(result))
            )
        return result


async def _apply_policies(
    tx: Transaction, actor: Actor, file: versions.PolicyFile, draft: Draft, now: InForce
) -> versions.Applied:
    # What somebody put in force by hand counts for nothing: applying a file is how it is repaired.
    before = await policies_store.list_rows(tx, now.version) if now.version and now.true else []
    if file.merge and not now.true:
        raise Conflict(
            "The policies in force were not applied by the plane: none of them can be kept.",
            code="policy_corrupt",
            hint="Look at `cortex audit verify`, then apply a whole file without `merge`.",
        )
    rows, warnings = await examine(tx, draft, before if file.merge else ())
    diff = await asyncio.to_thread(versions.difference, before, rows)
    differs = bool(diff.added or diff.removed or diff.changed) or not now.true
    version = now.newest + 1 if differs else now.version
    text = await asyncio.to_thread(write, rows) if file.merge else file.text
    digest = hashlib.sha256(text.encode()).hexdigest()
    if differs and not file.dry_run:
        about = (text, digest, len(rows), file.note, actor.name, actor.identity)
        await tx.rows(queries.insert_policy_version, tx.org, version, *about)
        await tx.rows(queries.insert_rows, tx.org, version, [versions.placed_as_json(row) for row in rows])
        await policies_store.sign_policy_version(tx, version)
        await policies_store.set_policy_version(tx, version)
        await record(
            tx, actor, "policy_applied", version=version, digest=digest, rows=len(rows),
            rows_digest=await asyncio.to_thread(versions.rows_digest, rows), added=diff.added,
            removed=diff.removed, changed=diff.changed, note=file.note,
        )  # fmt: skip
    return versions.Applied(
        version=version, changed=differs, dry_run=file.dry_run, rows=len(rows), diff=diff, warnings=warnings
    )


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
    rows = merge_rows(keep, own) if keep else own
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
