"""What is found before the org is known: only (org, id), only by the app, and through it only who holds the key."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import NotFound, Unauthenticated
from cortex_plane.tenancy.model.access import ActorKind, KeyDraft, Redemption, SecretKind, secret_digest
from cortex_plane.tenancy.model.orgs import MemberChange, OrgDraft, Role
from cortex_plane.tenancy.verbs import frame, keys, logins, orgs
from cortex_plane.tenancy.verbs.access import new_secret
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.servers import CREDENTIAL_KEY

CALLS = {
    "resolve_api_key": "select * from resolve_api_key('\\x00')",
    "resolve_enrolment_code": "select * from resolve_enrolment_code('\\x00')",
    "resolve_login_link": "select * from resolve_login_link('\\x00')",
    "resolve_browser_session": "select * from resolve_browser_session('\\x00')",
    "resolve_approval_token": "select * from resolve_approval_token('\\x00')",
    "resolve_approval": "select * from resolve_approval(gen_random_uuid())",
    "find_old_credentials": "select * from find_old_credentials('90 days', '30 days', 10)",
    "resolve_connection": "select * from resolve_connection(gen_random_uuid())",
    "find_failing_connections": "select * from find_failing_connections('webhook', '5 days', 10)",
    "forget_inbound_events": "select forget_inbound_events('30 days', 10)",
    "resolve_identity_code": "select * from resolve_identity_code('\\x00')",
    "resolve_org": "select * from resolve_org('acme')",
    "resolve_orgs": "select * from resolve_orgs(null, null, 10)",
    "prepare_event_partitions": "select prepare_event_partitions(1)",
    "find_orgs_in_turn": "select * from find_orgs_in_turn('{plane}', plane_now(), null, '{}', 10)",
    "find_jobs_of_org": "select * from find_jobs_of_org(gen_random_uuid(), '{plane}', plane_now(), 10, null)",
    "find_orphans": "select * from find_orphans(10)",
    "find_leased": "select * from find_leased(null)",
    "find_cancelled": "select * from find_cancelled(null)",
    "find_overdue": "select * from find_overdue(null, null)",
    "forget_chunks": "select forget_chunks(10)",
    "find_unrooted": "select * from find_unrooted(0, '00000000-0000-0000-0000-000000000000', 10)",
}
RESOLVER_READS = {
    ("org", "id"), ("org", "slug"), ("org", "created_at"),
    ("api_key", "org_id"), ("api_key", "id"), ("api_key", "secret_hash"),
    ("enrolment_code", "org_id"), ("enrolment_code", "id"), ("enrolment_code", "code_hash"),
    ("login_link", "org_id"), ("login_link", "id"), ("login_link", "secret_hash"),
    ("approval_token", "org_id"), ("approval_token", "id"), ("approval_token", "token_hash"),
    ("approval_request", "org_id"), ("approval_request", "id"),
    ("channel_connection", "org_id"), ("channel_connection", "id"),
    ("identity_code", "org_id"), ("identity_code", "id"), ("identity_code", "code_hash"),
    ("browser_session", "org_id"), ("browser_session", "id"), ("browser_session", "secret_hash"),
}  # fmt: skip


async def resolve(app: asyncpg.Connection, call: str, *args: Any) -> list[dict[str, UUID]]:
    return [dict(row) for row in await app.fetch(f"select * from {call}", *args)]


@pytest.mark.proves("D.4")
async def test_a_key_resolves_to_its_org_and_id(app: asyncpg.Connection, world: World, other: World) -> None:
    for held in (world, other):
        for person in (held.admin, held.service):
            found = await resolve(app, "resolve_api_key($1)", CREDENTIAL_KEY.lookup(secret_digest(person.secret)))
            assert found == [{"org_id": held.org_id, "id": person.actor.key_id}]
    for unknown in (secret_digest(new_secret(SecretKind.KEY)), b"", bytes(32)):
        assert await resolve(app, "resolve_api_key($1)", unknown) == []
    assert await resolve(app, "resolve_api_key($1)", None) == []


@pytest.mark.proves("D.4")
async def test_a_slug_resolves_to_its_org(app: asyncpg.Connection, world: World, other: World) -> None:
    assert await resolve(app, "resolve_org('acme')") == [{"org_id": world.org_id, "id": world.org_id}]
    assert await resolve(app, "resolve_org('rival')") == [{"org_id": other.org_id, "id": other.org_id}]
    for unknown in ("acm_", "%", "ACME", "", None):
        assert await resolve(app, "resolve_org($1)", unknown) == []


@pytest.mark.proves("D.4")
async def test_orgs_resolve_page_by_page(
    app: asyncpg.Connection, admin: asyncpg.Connection, world: World, other: World
) -> None:
    call = "resolve_orgs($1, $2, $3)"
    newest = [{"org_id": held.org_id, "id": held.org_id} for held in (other, world)]
    assert await resolve(app, call, None, None, 10) == newest
    assert await resolve(app, call, None, None, 1) == newest[:1]
    created = await admin.fetchval("select created_at from org where id = $1", other.org_id)
    assert await resolve(app, call, created, other.org_id, 10) == newest[1:]
    assert await resolve(app, call, datetime(2000, 1, 1, tzinfo=UTC), other.org_id, 10) == []


async def test_the_list_of_orgs_reads_each_under_its_own_policies(db: Database, world: World, other: World) -> None:
    page = await orgs.list_orgs(db, world.admin.actor, None, 1)
    assert [org.slug for org in page.items] == ["rival"]
    page = await orgs.list_orgs(db, world.admin.actor, page.next, 1)
    assert [org.slug for org in page.items] == ["acme"]
    assert page.next is None


async def test_only_the_app_may_call_a_definers_function(admin: asyncpg.Connection, world: World) -> None:
    for role, allowed in ((f"stranger_{secrets.token_hex(4)}", False), ("cortex_app", True)):
        for name, call in CALLS.items():
            attempt = admin.transaction()
            await attempt.start()
            try:
                if not allowed:
                    await admin.execute(f"create role {role} nologin")
                    await admin.execute(f"grant usage on schema public to {role}")
                await admin.execute(f"set local role {role}")
                if allowed:
                    await admin.fetch(call)
                else:
                    with pytest.raises(asyncpg.InsufficientPrivilegeError, match=f"function {name}"):
                        await admin.fetch(call)
            finally:
                await attempt.rollback()


async def test_the_resolver_reads_few_columns_and_writes_nothing(admin: asyncpg.Connection, world: World) -> None:
    rows = await admin.fetch(
        """
        select c.relname, a.attname, has_column_privilege('cortex_resolver', c.oid, a.attname, 'select') as reads,
          has_column_privilege('cortex_resolver', c.oid, a.attname, 'insert, update, references')
            or has_table_privilege('cortex_resolver', c.oid, 'delete, truncate, trigger') as writes
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
        """
    )
    assert {(row["relname"], row["attname"]) for row in rows if row["reads"]} == RESOLVER_READS
    assert not any(row["writes"] for row in rows)
    async with admin.transaction():
        await admin.execute("set local role cortex_resolver")
        assert await admin.fetchval("select count(slug) from org") == 1
        for column in ("name", "settings", "revision"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with admin.transaction():
                    await admin.fetch(f"select {column} from org")
        for column in ("roles", "platform", "last_characters"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with admin.transaction():
                    await admin.fetch(f"select {column} from api_key")


# Authenticate ------------------------------------------------------------------------------------------------


async def refusal(db: Database, secret: str, org: str | None = None) -> str:
    with pytest.raises((Unauthenticated, NotFound)) as raised:
        await frame.authenticate_key(db, secret, org)
    assert raised.value.hint
    return raised.value.code


async def test_an_unknown_key_is_refused(db: Database, world: World) -> None:
    assert await refusal(db, new_secret(SecretKind.KEY)) == "key_unknown"
    assert await refusal(db, "not a key") == "key_unknown"
    assert await refusal(db, world.admin.secret + "x") == "key_unknown"


async def test_a_revoked_key_is_refused_at_once(db: Database, world: World) -> None:
    await keys.revoke_key(db, world.admin.actor, world.service.actor.key_id)
    assert await refusal(db, world.service.secret) == "key_revoked"
    await frame.authenticate_key(db, world.admin.secret)


async def test_a_key_ends_at_its_time_and_not_before(db: Database, clock: Clock, world: World) -> None:
    draft = KeyDraft(name="short", roles=[Role.MEMBER], expires_in_days=2)
    secret = (await keys.create_key(db, world.admin.actor, draft)).secret
    assert secret is not None
    await clock.advance(timedelta(days=2, microseconds=-1))
    await frame.authenticate_key(db, secret)
    await clock.advance(timedelta(microseconds=1))
    assert await refusal(db, secret) == "key_expired"
    await frame.authenticate_key(db, world.service.secret)


async def test_the_key_of_a_deactivated_member_does_not_come_back(db: Database, world: World) -> None:
    pat = await world.person(Role.OPERATOR)
    assert pat.actor.user_account_id is not None

    async def activate(active: bool) -> None:
        assert pat.actor.user_account_id is not None
        change = MemberChange(active=active)
        await orgs.update_member(db, world.admin.actor, pat.actor.user_account_id, change, None)

    await activate(False)
    assert await refusal(db, pat.secret) == "member_deactivated"
    await activate(True)
    assert await refusal(db, pat.secret) == "key_revoked"


async def test_a_persons_key_carries_the_person(db: Database, world: World) -> None:
    pat = await world.person(Role.APPROVER, Role.MEMBER, name="Pat", clearance=7)
    actor = await frame.authenticate_key(db, pat.secret)
    assert (actor.kind, actor.name, actor.clearance, actor.platform) == (ActorKind.PERSON, "Pat", 7, False)
    assert actor.roles == {Role.APPROVER, Role.MEMBER}
    service = await frame.authenticate_key(db, world.service.secret)
    assert (service.kind, service.name, service.user_account_id) == (ActorKind.SERVICE, "bridge", None)


@pytest.mark.proves("D.22")
async def test_a_platform_key_acts_elsewhere_as_a_visible_stranger(db: Database, world: World, other: World) -> None:
    home = await frame.authenticate_key(db, world.admin.secret, "acme")
    assert home == world.admin.actor
    away = await frame.authenticate_key(db, world.admin.secret, "rival")
    assert (away.org_id, away.kind) == (other.org_id, ActorKind.PLATFORM)
    assert away.roles == {Role.ADMIN}
    assert (away.user_account_id, away.clearance) == (None, 0)
    assert away.key_id == world.admin.actor.key_id
    assert await refusal(db, world.admin.secret, "nowhere") == "org_not_found"


async def test_for_a_plain_key_other_orgs_do_not_exist(db: Database, world: World, other: World) -> None:
    pat = await world.person(Role.ADMIN)
    assert (await frame.authenticate_key(db, pat.secret, "acme")).org_id == world.org_id
    errors = []
    for slug in ("rival", "nowhere"):
        with pytest.raises(NotFound) as raised:
            await frame.authenticate_key(db, pat.secret, slug)
        errors.append((raised.value.code, str(raised.value)))
    assert errors[0] == errors[1], "an org that exists must look like one that does not"


async def test_an_org_made_by_a_platform_key_gets_a_plain_one(db: Database, world: World) -> None:
    new = await orgs.create_org(db, world.admin.actor, OrgDraft(slug="third", name="Third"))
    key = await logins.redeem_for_key(db, Redemption(code=new.enrolment.code))
    assert key.secret is not None
    actor = await frame.authenticate_key(db, key.secret)
    assert (actor.org_id, actor.platform) == (new.org.id, False)
    assert await refusal(db, key.secret, "acme") == "org_not_found"


@pytest.mark.proves("D.6")
async def test_the_last_use_is_written_at_most_once_a_minute(
    db: Database, admin: asyncpg.Connection, clock: Clock, world: World
) -> None:
    async def used() -> datetime:
        await frame.authenticate_key(db, world.service.secret)
        at: datetime = await admin.fetchval(
            "select last_used_at from api_key where id = $1", world.service.actor.key_id
        )
        return at

    await admin.execute("update api_key set last_used_at = null")
    start = await used()
    await clock.advance(timedelta(minutes=1))
    assert await used() == start
    await clock.advance(timedelta(microseconds=1))
    assert await used() == start + timedelta(minutes=1, microseconds=1)


async def test_a_refused_key_leaves_no_trace_of_use(
    db: Database, admin: asyncpg.Connection, clock: Clock, world: World
) -> None:
    read = "select last_used_at from api_key where id = $1"
    before = await admin.fetchval(read, world.service.actor.key_id)
    await keys.revoke_key(db, world.admin.actor, world.service.actor.key_id)
    await clock.advance(timedelta(hours=1))
    assert await refusal(db, world.service.secret) == "key_revoked"
    assert await admin.fetchval(read, world.service.actor.key_id) == before
