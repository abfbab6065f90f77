"""One org never reaches another's rows: proven from the catalogue, table by table, and with every query we have."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.db.database import Database, every_query
from cortex_plane.tenancy.verbs import frame
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT
from tests.storage.tenants import NOT_A_TENANTS, digest, digests, inside, org_column, populate, tables

POLICY = "({column} = (NULLIF(current_setting('app.org_id'::text, true), ''::text))::uuid)"

# A function that runs with its owner's rights is a hole by design: each is listed here, with its owner.
DEFINERS = {
    "resolve_api_key": "cortex_resolver",
    "resolve_enrolment_code": "cortex_resolver",
    "resolve_login_link": "cortex_resolver",
    "resolve_browser_session": "cortex_resolver",
    "resolve_identity_code": "cortex_resolver",
    "resolve_approval_token": "cortex_resolver",
    "resolve_approval": "cortex_resolver",
    "find_old_credentials": "cortex_scheduler",
    "resolve_connection": "cortex_resolver",
    "find_failing_connections": "cortex_scheduler",
    "find_trial_connections": "cortex_scheduler",
    "forget_inbound_events": "cortex_scheduler",
    "claim_channel_events": "cortex_scheduler",
    "forget_channel_events": "cortex_scheduler",
    "claim_channel_listeners": "cortex_scheduler",
    "find_reply_streams": "cortex_scheduler",
    "renew_channel_listeners": "cortex_scheduler",
    "resolve_org": "cortex_resolver",
    "resolve_orgs": "cortex_resolver",
    "prepare_event_partitions": "the owner of event",
    "convert_credentials": "the owner of event",
    "analyze_grown_tables": "the owner of event",
    "find_orgs_in_turn": "cortex_claimer",
    "find_jobs_of_org": "cortex_claimer",
    "find_orphans": "cortex_claimer",
    "find_leased": "cortex_claimer",
    "find_cancelled": "cortex_claimer",
    "find_overdue": "cortex_claimer",
    "find_due_approvals": "cortex_scheduler",
    "find_due_calls": "cortex_scheduler",
    "find_idle_sessions": "cortex_scheduler",
    "claim_notifications": "cortex_scheduler",
    "next_deadline": "cortex_scheduler",
    "forget_chunks": "cortex_scheduler",
    "find_unrooted": "cortex_scheduler",
    "find_untold_signals": "cortex_scheduler",
    "forget_signals": "cortex_scheduler",
    "forget_atlas_minutes": "cortex_scheduler",
    "forget_request_budgets": "cortex_scheduler",
    "forget_resolutions": "cortex_scheduler",
    "lock_platform_policies": "cortex_scheduler",
    "replace_platform_policies": "cortex_scheduler",
}
ROLES = ("cortex_app", "cortex_resolver", "cortex_claimer", "cortex_scheduler")

# What the app may do with the tables that belong to no org.
RIGHTS_WITHOUT_AN_ORG = {
    "schema_migration": {"select"},
    "worker": {"select", "insert", "delete", "update expires_at", "update stopped_at"},
    "notifier": {"select", "insert", "delete", "update expires_at"},
    "tool_version": {"select", "insert", "update published_at", "update declares_risk"},
    "tool_server": {"select", "insert", "delete"} | {f"update {c}" for c in ("state", "since", "reason", "tools")},
    "plane_key": {"select", "insert"}
    | {f"update {c}" for c in ("fingerprint", "previous", "resealed_org_created_at", "resealed_org", "resealed_job")},
    "credential_key": {"select", "insert", "update sealed", "update converted_at"},
    "platform_policy": {"select"},
    "platform_policy_version": {"select"},
}

MARK = "only-in-acme"
"""Stands in rows of one org alone, so that it is known wherever it turns up."""


# The catalogue -----------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.3")
async def test_every_table_has_forced_row_level_security_on_its_org(admin: asyncpg.Connection) -> None:
    await admin.execute("select prepare_event_partitions(5)")
    names = await tables(admin, partitions=True)
    assert len([name for name in names if name.startswith("event_2")]) >= 6
    rows = await admin.fetch(
        """
        select c.relname, c.relrowsecurity and c.relforcerowsecurity as forced, p.permissive, p.roles, p.cmd,
          p.qual, p.with_check
        from pg_class c left join pg_policies p
          on p.schemaname = 'public' and p.tablename = c.relname and p.policyname = 'tenant'
        where c.relnamespace = 'public'::regnamespace and c.relname = any ($1)
        """,
        names,
    )
    assert len(rows) == len(names)
    for row in rows:
        wanted = POLICY.format(column=org_column(row["relname"]))
        assert tuple(row)[1:] == (True, "PERMISSIVE", ["public"], "ALL", wanted, wanted), row["relname"]


async def test_nothing_opens_another_way_to_the_rows(admin: asyncpg.Connection) -> None:
    others = await admin.fetch("select tablename, policyname, cmd, roles from pg_policies where policyname <> 'tenant'")
    assert {tuple(map(str, row)) for row in others} == {
        ("org", "resolver", "SELECT", "['cortex_resolver']"),
        ("api_key", "resolver", "SELECT", "['cortex_resolver']"),
        ("enrolment_code", "resolver", "SELECT", "['cortex_resolver']"),
        ("login_link", "resolver", "SELECT", "['cortex_resolver']"),
        ("browser_session", "resolver", "SELECT", "['cortex_resolver']"),
        ("identity_code", "resolver", "SELECT", "['cortex_resolver']"),
        ("approval_token", "resolver", "SELECT", "['cortex_resolver']"),
        ("approval_token", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("approval_request", "resolver", "SELECT", "['cortex_resolver']"),
        ("signing_secret", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("channel_connection", "resolver", "SELECT", "['cortex_resolver']"),
        ("channel_connection", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("inbound_event", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("inbound_event", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("session_head", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("channel_chat", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("channel_event", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("channel_event", "scheduler_takes", "UPDATE", "['cortex_scheduler']"),
        ("channel_event", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("channel_prompt", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("channel_prompt", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("channel_listener", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("channel_listener", "scheduler_inserts", "INSERT", "['cortex_scheduler']"),
        ("channel_listener", "scheduler_takes", "UPDATE", "['cortex_scheduler']"),
        ("job", "claimer", "ALL", "['cortex_claimer']"),
        ("job", "claimer_writes_nothing", "UPDATE", "['cortex_claimer']"),
        ("agent", "claimer", "SELECT", "['cortex_claimer']"),
        ("agent_version", "claimer", "SELECT", "['cortex_claimer']"),
        ("approval_request", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("session", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("external_call", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("notification", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("notification", "scheduler_takes", "UPDATE", "['cortex_scheduler']"),
        ("org", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("audit_entry", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("audit_root", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("text_chunk", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("text_chunk", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("signal", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("signal", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("request_budget", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("request_budget", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("atlas_minute", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("atlas_minute", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("resolution", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("resolution", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("resolution", "scheduler_updates", "UPDATE", "['cortex_scheduler']"),
        ("job_wait", "scheduler", "SELECT", "['cortex_scheduler']"),
        ("job_wait", "scheduler_deletes", "DELETE", "['cortex_scheduler']"),
        ("job", "scheduler_of_waits", "SELECT", "['cortex_scheduler']"),
    }
    # A foreign table or a view would show its owner's rows, unless the view runs with the rights of whoever asks.
    views = await admin.fetch(
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('v', 'm', 'f')"
        " and not coalesce(relkind = 'v' and 'security_invoker=true' = any (reloptions), false)"
    )
    assert views == []
    # A null would match no policy and hide a row from everybody.
    loose = await admin.fetch(
        """
        select c.relname from pg_class c where c.relname = any ($1) and not exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attnotnull
            and a.attname = case c.relname when 'org' then 'id' else 'org_id' end)
        """,
        await tables(admin, partitions=True),
    )
    assert loose == []


async def test_what_belongs_to_no_org_cannot_name_one(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch(
        """
        select c.relname::text as name, c.relrowsecurity as secured, array_agg(a.attname::text) as columns
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and c.relname = any ($1)
        group by 1, 2
        """,
        list(NOT_A_TENANTS),
    )
    assert {row["name"] for row in rows} == set(NOT_A_TENANTS)
    tenants = {"org", *(name.removesuffix("s") for name in await tables(admin))}
    for row in rows:
        assert not row["secured"], "its policies would have nothing to compare"
        named = {column.removesuffix("_id") for column in row["columns"]} & tenants
        assert named == set(), f"{row['name']} refers to {named}"


async def test_the_app_may_do_little_with_what_belongs_to_no_org(admin: asyncpg.Connection) -> None:
    for name, allowed in RIGHTS_WITHOUT_AN_ORG.items():
        rights = set()
        for right in ("select", "insert", "update", "delete", "truncate", "references", "trigger"):
            if await admin.fetchval("select has_table_privilege('cortex_app', $1, $2)", name, right):
                rights.add(right)
        columns = await admin.fetch(
            """
            select attname from pg_attribute where attrelid = $1::text::regclass and attnum > 0
              and has_column_privilege('cortex_app', attrelid, attname, 'update')
            """,
            name,
        )
        assert rights | {f"update {row[0]}" for row in columns} == allowed, name
    assert set(RIGHTS_WITHOUT_AN_ORG) == set(NOT_A_TENANTS)


@pytest.mark.proves("D.3")
async def test_references_between_tenants_rows_carry_the_org(admin: asyncpg.Connection) -> None:
    names = await tables(admin, partitions=True)
    keys = await admin.fetch(
        """
        select c.conname, c.conrelid::regclass::text as source, c.confrelid::regclass::text as target,
          array(select a.attname::text from unnest(c.conkey) with ordinality k (n, i)
            join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.n order by k.i) as columns,
          array(select a.attname::text from unnest(c.confkey) with ordinality k (n, i)
            join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.n order by k.i) as targets
        from pg_constraint c where c.contype = 'f' and c.connamespace = 'public'::regnamespace
        """
    )
    assert len(keys) > 10
    for key in keys:
        assert {key["source"], key["target"]} <= set(names), key["conname"]
        pairs = list(zip(key["columns"], key["targets"], strict=True))
        wanted = ("org_id", org_column(key["target"]))
        assert wanted in pairs, f"{key['conname']} does not tie the org: {pairs}"


async def test_partitions_are_reached_through_their_parent_only(
    app: asyncpg.Connection, admin: asyncpg.Connection, world: World
) -> None:
    await populate(world)
    await admin.execute("select prepare_event_partitions(3)")
    partitions = set(await tables(admin, partitions=True)) - set(await tables(admin))
    assert {"event_default"} < partitions
    for name in partitions:
        for right in ("select", "insert", "update", "delete", "truncate", "references", "trigger"):
            for role in (*ROLES, "public"):
                assert not await admin.fetchval("select has_table_privilege($1, $2, $3)", role, name, right)
        async with inside(app, world.org_id):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await app.fetch(f"select * from {name}")


@pytest.mark.proves("D.4")
async def test_the_definers_functions_are_the_listed_ones_with_a_pinned_path(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch(
        """
        select p.proname, p.proowner::regrole::text as owner, p.proconfig,
          has_function_privilege('public', p.oid, 'execute') as anyone,
          has_function_privilege('cortex_app', p.oid, 'execute') as app
        from pg_proc p where p.prosecdef and p.pronamespace = 'public'::regnamespace
        """
    )
    event_owner = await admin.fetchval("select relowner::regrole::text from pg_class where relname = 'event'")
    owners = {name: event_owner if "event" in owner else owner for name, owner in DEFINERS.items()}
    assert {row["proname"]: row["owner"] for row in rows} == owners
    for row in rows:
        assert row["proconfig"][0] == "search_path=public, pg_temp", row["proname"]
        assert (row["anyone"], row["app"]) == (False, True), row["proname"]
    loose = await admin.fetch(
        """
        select proname from pg_proc join pg_language l on l.oid = prolang
        where pronamespace = 'public'::regnamespace and l.lanname = 'plpgsql'
          and proconfig[1] is distinct from 'search_path=public, pg_temp'
        """
    )
    assert loose == [], "the others run as the app, and still must not meet a stranger's table"


async def test_the_roles_have_no_powers(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch(
        """
        select rolcanlogin, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolreplication
        from pg_roles where rolname = any ($1)
        """,
        list(ROLES),
    )
    assert [tuple(row) for row in rows] == [(False,) * 6] * len(ROLES)
    for role, member in itertools.permutations(ROLES, 2):
        assert not await admin.fetchval("select pg_has_role($1, $2, 'member')", role, member)
    for role in ROLES:
        assert not await admin.fetchval("select has_schema_privilege($1, 'public', 'create')", role)


# The rows ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.1")
async def test_without_an_org_nothing_is_seen_and_nothing_written(
    app: asyncpg.Connection, admin: asyncpg.Connection, world: World
) -> None:
    await populate(world)
    names = await tables(admin)
    before = await digest(admin, names)
    assert "empty" not in before.values(), "each table must have a row to hide"
    for name in names:
        assert await app.fetchval(f"select count(*) from {name}") == 0, name
        await refuse_insert(app, admin, name, world.org_id)
    assert await digest(admin, names) == before


async def test_an_org_does_not_reach_anothers_rows(
    app: asyncpg.Connection, admin: asyncpg.Connection, world: World, other: World
) -> None:
    await populate(world)
    await populate(other)
    names = await tables(admin)
    before = await digest(admin, names, world.org_id)
    for name in names:
        column = org_column(name)
        async with inside(app, other.org_id):
            seen = await app.fetch(f"select distinct {column} from {name}")
            assert [row[0] for row in seen] == [other.org_id], name
            assert await app.fetch(f"select from {name} where {column} = $1", world.org_id) == []
            for changed in await updatable(app, name):
                done = await app.execute(f"update {name} set {changed} = {changed} where {column} = $1", world.org_id)
                assert done == "UPDATE 0", name
            if await app.fetchval("select has_table_privilege($1, 'delete')", name):
                done = await app.execute(f"delete from {name} where {column} = $1", world.org_id)
                assert done == "DELETE 0", name
        async with inside(app, other.org_id):
            for changed in await updatable(app, name):
                # All rows that the org can see, and thereby none of the other's.
                await app.execute(f"update {name} set {changed} = {changed}")
        async with inside(app, other.org_id):
            await refuse_insert(app, admin, name, world.org_id)
            if column in await updatable(app, name):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with app.transaction():
                        await app.execute(f"update {name} set {column} = $1", world.org_id)
    assert await digest(admin, names, world.org_id) == before


async def test_the_pool_forgets_the_org(urls: Urls, admin: asyncpg.Connection, world: World, other: World) -> None:
    await populate(world)
    names = await tables(admin)
    db = await Database.open(urls.app, max_size=1, vault=VAULT)
    try:
        async with db.transaction(world.org_id) as tx:
            assert await tx.value("select count(*) from org") == 1
            backend = await tx.value("select pg_backend_pid()")
        await _expect_nothing(db, backend, names)
        with pytest.raises(ZeroDivisionError):
            async with db.transaction(world.org_id) as tx:
                raise ZeroDivisionError
        await _expect_nothing(db, backend, names)
        await frame.authenticate_key(db, world.admin.secret)
        await _expect_nothing(db, backend, names)
        async with db.transaction(other.org_id) as tx:
            assert [row["id"] for row in await tx.rows("select id from org")] == [other.org_id]
        await _expect_nothing(db, backend, names)
    finally:
        await db.close()


async def _expect_nothing(db: Database, backend: int, names: list[str]) -> None:
    await db._shared.return_connections()
    async with db._pool.acquire() as connection:
        assert await connection.fetchval("select pg_backend_pid()") == backend
        assert await connection.fetchval("select current_setting('app.org_id', true)") == ""
        for name in names:
            assert await connection.fetchval(f"select count(*) from {name}") == 0, name


async def refuse_insert(app: asyncpg.Connection, admin: asyncpg.Connection, table: str, victim: UUID) -> None:
    """Try to write a copy of one of the victim's own rows, which breaks no other rule first."""
    columns = await admin.fetchval(
        """
        select string_agg(quote_ident(attname), ', ') from pg_attribute
        where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attgenerated = ''
          and attidentity = ''
        """,
        table,
    )
    row = await admin.fetchval(f"select to_jsonb(t) from {table} t where {org_column(table)} = $1 limit 1", victim)
    assert row is not None
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with app.transaction():
            await app.execute(
                f"insert into {table} ({columns}) select {columns} from jsonb_populate_record(null::{table}, $1)", row
            )


async def updatable(app: asyncpg.Connection, table: str) -> list[str]:
    rows = await app.fetch(
        """
        select attname::text from pg_attribute
        where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attgenerated = ''
          and has_column_privilege($1, attname, 'update')
        """,
        table,
    )
    return [row[0] for row in rows]


# The queries -------------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.3", "D.2")
async def test_no_query_reaches_another_orgs_rows(admin: asyncpg.Connection, world: World, other: World) -> None:
    """Each query file runs inside one org with the ids and names of another.

    It runs as the app's role over the migrating login's connection, so that whatever it wrote can be seen from
    behind row-level security before it is rolled back.
    """
    await populate(world)
    await populate(other)
    draft = AgentDraft(name=MARK, slug=MARK, role=MARK, team="main", model_config=ModelConfig(model=MARK))
    marked = await agents.create_agent(world.db, world.admin.actor, draft)
    await world.say(MARK)
    names = await tables(admin)
    ids = await _every_id(admin, names, world.org_id)
    kinds = [marked.id, *await _ids_by_kind(admin, world.org_id)]
    assert set(kinds) <= ids
    await admin.execute(f"prepare digests as {digests(names, world.org_id)}; {ATTEMPT}")
    before = await digest(admin, names, world.org_id)
    ran = 0
    for name, text in every_query().items():
        statement = await admin.prepare(text)
        types = [parameter.name for parameter in statement.get_parameters()]
        victims = kinds if {"uuid", "uuid[]"} & set(types) else kinds[:1]
        attempts = [args for victim in victims for args in _arguments(types, victim, other.org_id)]
        await admin.execute(f"prepare attempted {_listed(types)} as {text}")
        answers, rows, changed = await admin.fetchrow(
            "call pg_temp.attempt($1, $2, $3, $4, null, null, null)",
            [f"execute attempted {_listed(map(_literal, args, types))}" for args in attempts],
            bool(statement.get_attributes()),
            str(other.org_id),
            json.dumps(before),
        )
        await admin.execute("deallocate attempted")
        ran += answers
        assert changed == [], f"{name} with {attempts[changed[0]]} changed another org's rows"
        for number, row in json.loads(rows):
            _expect_none_of(ids, row, name, attempts[number], other.org_id)
    await admin.execute("deallocate digests; drop procedure pg_temp.attempt")
    assert ran > 10_000, "most statements must get as far as running"


# All attempts with one query, each in a transaction of its own. A round trip for each would take most of the time.
ATTEMPT = """
create procedure pg_temp.attempt(
  statements text[], returns_rows boolean, org text, before jsonb,
  inout ran integer, inout rows jsonb, inout changed integer[]
) language plpgsql as $$
declare
  refused boolean;
  found record;
  after jsonb;
begin
  ran := 0;
  rows := '[]';
  changed := '{}';
  for number in 1 .. cardinality(statements) loop
    perform set_config('app.org_id', org, true), set_config('role', 'cortex_app', true);
    refused := false;
    begin
      if returns_rows then
        for found in execute statements[number] loop
          rows := rows || jsonb_build_array(jsonb_build_array(number - 1, found::text));
        end loop;
      else
        execute statements[number];
      end if;
    exception when others then
      refused := true; -- which is as good as finding nothing
    end;
    if not refused then
      ran := ran + 1;
      if pg_current_xact_id_if_assigned() is not null then
        perform set_config('role', 'none', true);
        execute 'execute digests' into after;
        if after <> before then
          changed := changed || (number - 1);
        end if;
      end if;
    end if;
    rollback;
  end loop;
end $$
"""


def _expect_none_of(ids: set[UUID], row: str, query: str, args: list[Any], own_org: UUID) -> None:
    given = {arg for arg in args if isinstance(arg, UUID)} if args[:1] == [own_org] else set()
    assert MARK in args or (MARK not in row and MARK.encode().hex() not in row), f"{query} with {args} returned {row}"
    found = {UUID(each) for each in re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", row)}
    assert found & (ids - given) == set(), f"{query} with {args} returned {found & ids}"


def _listed(values: Iterable[str]) -> str:
    text = ", ".join(values)
    return f"({text})" if text else ""


def _literal(value: Any, kind: str = "text") -> str:
    match value:
        case None:
            text = "null"
        case list():
            text = f"array[{', '.join(map(_literal, value))}]"
        case bytes():
            text = f"'\\x{value.hex()}'"
        case _:
            text = f"'{value}'"
    return f"{text}::{kind}"


def _arguments(types: list[str], id: UUID, own_org: UUID) -> list[list[Any]]:
    """The id everywhere; after the right org, for queries that take it first; and alone, for optional filters."""
    places = [place for place, kind in enumerate(types) if kind == "uuid"]
    tries: list[list[Any]] = []
    for word, number in ((MARK, 0), (None, 1000), (None, None)):
        everywhere = [_argument(kind, id, word, number) for kind in types]
        # A limit comes last.
        numbers = [place for place, kind in enumerate(types) if kind in ("int2", "int4", "int8")]
        if numbers:
            everywhere[numbers[-1]] = 1000
        tries.append(everywhere)
        if places[:1] == [0]:
            tries.append([own_org, *everywhere[1:]])
        if len(places) > 1:
            tries += [
                [None if n in places and n != place else arg for n, arg in enumerate(everywhere)] for place in places
            ]
    return [args for n, args in enumerate(tries) if args not in tries[:n]]


def _argument(kind: str, id: UUID, word: str | None, number: int | None) -> Any:
    return {
        "uuid": id,
        "uuid[]": [id],
        "text": word,
        "text[]": [word or "member"],
        "int2": number,
        "int4": number,
        "int4[]": [0],
        "int8": number,
        "int8[]": [0],
        "float8": number,
        "bool": True,
        "bytea": bytes(32),
        "bytea[]": [b"{}"],
        "jsonb": "{}",
        "jsonb[]": ["{}"],
        "timestamptz": datetime(2100, 1, 1, tzinfo=UTC),
        "timestamptz[]": [],
        "interval": timedelta(days=1),
    }[kind]


def _uuids(value: Any) -> set[UUID]:
    if isinstance(value, UUID):
        return {value}
    if isinstance(value, (list, tuple)):
        return {found for part in value for found in _uuids(part)}
    return set()


async def _every_id(admin: asyncpg.Connection, names: list[str], org: UUID) -> set[UUID]:
    """Every UUID that stands in a row of the org."""
    found: set[UUID] = set()
    for name in names:
        for row in await admin.fetch(f"select * from {name} where {org_column(name)} = $1", org):
            found |= _uuids(tuple(row))
    return found - {UUID(int=0)}


async def _ids_by_kind(admin: asyncpg.Connection, org: UUID) -> list[UUID]:
    """One of each kind, and such that something hangs on it."""
    kinds = [
        ("org", "id"),
        ("agent", "team_id"),
        ("team_member", "user_account_id"),
        ("channel_mapping", "user_account_id"),
        ("api_key", "id"),
        ("login_link", "id"),
        ("enrolment_code", "id"),
        ("browser_session", "id"),
        ("identity_code", "id"),
        ("approval_token", "id"),
        ("signing_secret", "id"),
        ("channel_mapping", "connection_id"),
        ("channel_mapping", "id"),
        ("message", "session_id"),
        ("job", "id"),
        ("tool_call", "id"),
        ("tool_call", "job_id"),
        ("stored_result", "id"),
        ("approval_request", "id"),
        ("approval_invocation", "call_id"),
        ("text_chunk", "job_id"),
    ]
    return [
        await admin.fetchval(f"select {column} from {table} where {org_column(table)} = $1 limit 1", org)
        for table, column in kinds
    ]
