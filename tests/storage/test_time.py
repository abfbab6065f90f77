"""Time is the database's: everything that carries one takes it from plane_now(), which tests can move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.calls.model import DEFAULT_TIMEOUT, DISPATCH_SECONDS
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.kernel.errors import Unauthenticated
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import Termination
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import CODE_LIFE, LINK_LIFE, WHOLE_LIFE, KeyDraft
from cortex_plane.tenancy.model.identities import ACCOUNT_LINK_LIFE, WRONG_LIFE
from cortex_plane.tenancy.model.identities import LINK_LIFE as LINK_CODE_LIFE
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import frame, keys
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.storage.tenants import inside, populate, tables

START = datetime(2026, 3, 15, 12, tzinfo=UTC)

# Times that lie ahead: until when a call may be sent or decided, and when something is over for sure.
AHEAD = {
    ("tool_call", "dispatch_before"): START + timedelta(seconds=2),
    ("tool_call", "settle_after"): START + timedelta(seconds=12),
    ("approval_request", "deadline"): START + timedelta(days=1),
    ("approval_grant", "expires_at"): START + timedelta(days=1),
    ("session", "idle_check_at"): START + timedelta(days=1),
    ("login_link", "expires_at"): START + LINK_LIFE,
    ("enrolment_code", "expires_at"): START + CODE_LIFE,
    ("approval_token", "expires_at"): START + timedelta(days=1),
    ("browser_session", "expires_at"): START + WHOLE_LIFE,
    ("identity_code", "expires_at"): START + LINK_CODE_LIFE,
    ("account_link", "expires_at"): START + ACCOUNT_LINK_LIFE,
    ("identity_guess", "forget_at"): START + WRONG_LIFE,
    ("standing_approval", "expires_at"): START + timedelta(hours=1),
    ("resolution", "expires_at"): START + timedelta(minutes=5),
    ("member_absence", "ends_at"): START + timedelta(days=1),
}
MORE_TIME = {
    ("approval_request", "deadline"): [START + timedelta(hours=48)],
    ("approval_request", "remind_at"): [START + timedelta(hours=40)],
    ("approval_request", "next_action_at"): [START + timedelta(hours=40)],
    ("tool_call", "dispatch_before"): [START + timedelta(seconds=DISPATCH_SECONDS)],
    ("tool_call", "settle_after"): [START + timedelta(seconds=DISPATCH_SECONDS + DEFAULT_TIMEOUT)],
}
"""A change of rules has more time than a call, and a call of an agent that runs elsewhere has more than one here."""


async def partition_of(admin: asyncpg.Connection, session: UUID) -> list[str]:
    """Where the session's events landed, oldest first."""
    rows = await admin.fetch(
        "select tableoid::regclass::text as place from event where session_id = $1 order by seq", session
    )
    return [row["place"] for row in rows]


async def months(admin: asyncpg.Connection) -> list[str]:
    return [name for name in await tables(admin, partitions=True) if name.startswith("event_2")]


async def prepare(admin: asyncpg.Connection, ahead: int) -> int:
    made: int = await admin.fetchval("select prepare_event_partitions($1)", ahead)
    return made


@pytest.fixture
async def no_months(admin: asyncpg.Connection) -> None:
    """Without the months that the template got when it was migrated."""
    for name in await months(admin):
        await admin.execute(f"drop table {name}")


@pytest.mark.proves("D.16")
async def test_every_time_in_every_table_follows_the_clock(
    db: Database, admin: asyncpg.Connection, clock: Clock
) -> None:
    world = await World.create(db, "acme")
    await populate(world)
    columns = await admin.fetch(
        """
        select attrelid::regclass::text, attname from pg_attribute
        where attrelid = any ($1::text[]::regclass[]) and atttypid = 'timestamptz'::regtype and attnum > 0
        """,
        await tables(admin),
    )
    assert len(columns) > 20
    for table, column in columns:
        times = await admin.fetch(f"select distinct {column} from {table} where {column} is not null")
        allowed = {AHEAD.get((table, column), START), *MORE_TIME.get((table, column), ())}
        assert {row[0] for row in times} <= allowed, f"{table}.{column}"


async def test_what_happens_later_is_later(db: Database, admin: asyncpg.Connection, clock: Clock) -> None:
    world = await World.create(db, "acme")
    delivery = await world.say()
    await clock.advance(timedelta(hours=1))
    await world.say("again")
    session = await sessions.get_session(db, world.admin.actor, delivery.session_id)
    assert (session.created_at, session.last_activity_at) == (START, START + timedelta(hours=1))
    await clock.advance(timedelta(hours=1))
    session = await session_lifecycle.terminate(db, world.admin.actor, delivery.session_id, Termination())
    assert (session.updated_at, session.last_activity_at) == (START + timedelta(hours=2),) * 2
    job = await admin.fetchrow("select * from job where id = $1", delivery.job_id)
    assert (job["created_at"], job["finished_at"]) == (START, START + timedelta(hours=2))
    entries = await audit.list_entries(db, world.admin.actor, delivery.session_id, 0, 100)
    assert [entry.created_at for entry in entries] == sorted(entry.created_at for entry in entries)
    assert (await audit.verify_org(db, world.org_id)).faults == []


@pytest.mark.proves("D.6", "D.16")
async def test_keys_expire_by_the_databases_clock(db: Database, clock: Clock) -> None:
    world = await World.create(db, "acme")
    new = await keys.create_key(db, world.admin.actor, KeyDraft(name="short", roles=[Role.MEMBER], expires_in_days=30))
    assert new.key.expires_at == START + timedelta(days=30)
    assert new.secret is not None
    await frame.authenticate_key(db, new.secret)
    await clock.set(START + timedelta(days=30))
    with pytest.raises(Unauthenticated) as raised:
        await frame.authenticate_key(db, new.secret)
    assert raised.value.code == "key_expired"


@pytest.mark.usefixtures("no_months")
async def test_an_event_goes_to_its_month_or_to_the_default(
    db: Database, admin: asyncpg.Connection, clock: Clock
) -> None:
    await prepare(admin, 1)
    assert await months(admin) == ["event_2026_03", "event_2026_04"]
    world = await World.create(db, "acme")
    session = (await world.say()).session_id
    for at in (
        datetime(2026, 3, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 4, 1, tzinfo=UTC),
        datetime(2026, 4, 30, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 5, 1, tzinfo=UTC),
    ):
        await clock.set(at)
        await world.say()
    assert await partition_of(admin, session) == [
        "event_2026_03", "event_2026_03", "event_2026_03", "event_2026_04", "event_2026_04", "event_default",
    ]  # fmt: skip


@pytest.mark.usefixtures("no_months")
async def test_preparing_months_is_idempotent_and_crosses_years(
    app: asyncpg.Connection, admin: asyncpg.Connection, clock: Clock
) -> None:
    await clock.set(datetime(2026, 11, 30, 23, 59, tzinfo=UTC))
    assert await prepare(app, 3) == 4
    assert await months(admin) == ["event_2026_11", "event_2026_12", "event_2027_01", "event_2027_02"]
    assert await prepare(app, 3) == 0
    await clock.advance(timedelta(minutes=1))
    assert await prepare(app, 3) == 1
    assert (await months(admin))[-1] == "event_2027_03"
    # However far somebody asks, two years are enough.
    await prepare(app, 1_000_000)
    assert (await months(admin))[-1] == "event_2028_12"


@pytest.mark.usefixtures("no_months")
async def test_months_are_those_of_utc_wherever_the_session_is(admin: asyncpg.Connection, clock: Clock) -> None:
    for zone, month in (("Pacific/Auckland", 3), ("America/Los_Angeles", 6)):
        await admin.execute(f"set timezone = '{zone}'; set datestyle = 'SQL, DMY'")
        first = datetime(2026, month, 1, tzinfo=UTC)
        last = datetime(2026, month + 1, 1, tzinfo=UTC)
        for at in (first, last - timedelta(microseconds=1)):
            await clock.set(at)
            await prepare(admin, 0)
        await admin.execute("reset timezone; reset datestyle")
        bounds = await admin.fetchval(
            "select pg_get_expr(relpartbound, oid) from pg_class where relname = $1", f"event_2026_{month:02}"
        )
        assert bounds == f"FOR VALUES FROM ('{first:%Y-%m-%d} 00:00:00+00') TO ('{last:%Y-%m-%d} 00:00:00+00')"
    assert await months(admin) == ["event_2026_03", "event_2026_06"]


@pytest.mark.usefixtures("no_months")
async def test_a_month_whose_rows_are_in_the_default_stays_there(
    db: Database, app: asyncpg.Connection, admin: asyncpg.Connection, clock: Clock
) -> None:
    world = await World.create(db, "acme")
    session = (await world.say()).session_id
    assert await prepare(app, 2) == 2
    assert await months(admin) == ["event_2026_04", "event_2026_05"]
    assert await prepare(app, 2) == 0
    await world.say()
    await clock.set(datetime(2026, 4, 2, tzinfo=UTC))
    await world.say()
    assert await partition_of(admin, session) == ["event_default"] * 3 + ["event_2026_04"]
    async with inside(app, world.org_id):
        assert await app.fetchval("select count(*) from event") == 4
