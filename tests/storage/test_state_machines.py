"""The database enforces the same machines as the domain: every pair of states is tried on the real triggers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.model import approvals
from cortex_plane.db.database import Database
from cortex_plane.jobs.model import jobs
from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.kernel.errors import AlreadyExists, Conflict
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.model import sessions
from cortex_plane.sessions.model.sessions import SessionStatus
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.storage.tenants import inside, populate, tables

JOB_COLUMNS_OF_THE_APP = {
    "status", "retry_count", "next_retry_at", "open_approvals", "error_message", "updated_at", "finished_at",
    "checkpoint", "memory", "checkpoint_mac", "worker_id", "epoch", "write_seq", "leased_at", "runnable_at", "wake_at", "holds",
    "held_at", "pause", "cancel_requested_at", "cancel_reason", "deaths", "hand_backs", "running_seconds", "step_index", "result",
}  # fmt: skip
CALL_COLUMNS_OF_THE_APP = {
    "status", "attempt", "dispatch_before", "settle_after", "result", "result_id", "error", "settled_by",
    "finished_at", "edited", "arguments", "input_hash", "verdict", "rule", "granted", "tool_digest", "on_uncertain",
    "turned_down",
}  # fmt: skip
APPROVAL_COLUMNS_OF_THE_APP = {
    "status", "version", "arguments", "input_hash", "original_arguments", "original_hash", "invocations",
    "reminded_at", "next_action_at", "resolved_at", "resolved_by", "resolved_by_name", "resolution_reason",
    "resolved_via", "answer",
    "approvers", "escalation_level", "delegated", "channels_dispatched", "caused", "causes",
}  # fmt: skip
LEASED = {"status": "RUNNING", "worker_id": UUID(int=1)}
APPEND_ONLY = (
    "agent_version", "message", "audit_entry", "event", "job_history", "step",
    "stored_result", "policy_version", "approval_invocation", "approval_delegation",
    "approval_event", "model_call",
)  # fmt: skip

# Every value that some state asks for, so that only the trigger decides.
MOVE_JOB = """
update job set status = $2, next_retry_at = coalesce(next_retry_at, plane_now()), open_approvals = 1,
  error_message = 'boom', holds = '{operator}', held_at = plane_now(), runnable_at = null
where id = $1
"""


async def insert_job(connection: asyncpg.Connection, world: World, session: UUID, **values: Any) -> UUID:
    """A job in any state: the machine guards changes, and the checks guard the row."""
    id = new_id()
    row = {
        "org_id": world.org_id, "id": id, "session_id": session, "agent_id": world.agent.id, "agent_version": 1,
        "kind": "task", "payload": "{}", "runnable_at": None, **values,
    }  # fmt: skip
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    await connection.execute(f"insert into job ({', '.join(row)}) values ({places})", *row.values())
    return id


async def legal_job(
    connection: asyncpg.Connection, world: World, session: UUID, status: JobStatus, **values: Any
) -> UUID:
    now = await connection.fetchval("select plane_now()")
    legal: dict[str, Any] = {
        "status": status, "next_retry_at": now, "open_approvals": 1, "error_message": "boom",
        "finished_at": now if status in TERMINAL else None, "runnable_at": None, "holds": ["operator"],
        "held_at": now,
    }  # fmt: skip
    return await insert_job(connection, world, session, **(legal | values))


async def history(connection: asyncpg.Connection, job: UUID) -> list[tuple[str | None, str]]:
    rows = await connection.fetch(
        "select previous_status, new_status from job_history where job_id = $1 order by id", job
    )
    return [(row[0], row[1]) for row in rows]


async def refused(connection: asyncpg.Connection, statement: str, *args: Any) -> asyncpg.PostgresError | None:
    """The error of a statement, after which the transaction goes on."""
    try:
        async with connection.transaction():
            await connection.execute(statement, *args)
    except asyncpg.PostgresError as error:
        return error
    return None


@pytest.mark.proves("S0.1")
async def test_a_job_moves_along_the_edges_of_the_domain_and_no_others(app: asyncpg.Connection, world: World) -> None:
    session = (await world.say()).session_id
    async with inside(app, world.org_id):
        for old, new in itertools.product(JobStatus, repeat=2):
            job = await legal_job(app, world, session, old)
            error = await refused(app, MOVE_JOB, job, new)
            row = await app.fetchrow("select status, finished_at, updated_at from job where id = $1", job)
            if new in jobs.TRANSITIONS[old]:
                assert error is None, f"{old} → {new}"
                assert row["status"] == new
                assert await history(app, job) == [(None, old), (old, new)]
                assert (row["finished_at"] is not None) == (new in TERMINAL)
            elif old == new:
                assert error is None, f"{old} → {new}"
                assert await history(app, job) == [(None, old)]
            else:
                assert error is not None, f"{old} → {new}"
                assert (error.sqlstate, error.detail) == ("CX409", "illegal_transition"), f"{old} → {new}"
                assert str(error.args[0]) == f"A job cannot go from {old} to {new}."
                assert row["status"] == old
                assert await history(app, job) == [(None, old)]


@pytest.mark.proves("S2.8")
async def test_a_session_moves_along_the_edges_of_the_domain_and_no_others(
    app: asyncpg.Connection, world: World, clock: Clock
) -> None:
    insert = (
        "insert into session (org_id, id, kind, agent_id, status, opened_by)"
        " values ($1, $2, 'programmatic', $3, $4, $1)"
    )
    read = "select status, updated_at > created_at as touched from session where id = $1"
    pairs = list(itertools.product(SessionStatus, repeat=2))
    made: list[UUID] = []
    async with inside(app, world.org_id):
        for old, _ in pairs:
            made.append(new_id())
            await app.execute(insert, world.org_id, made[-1], world.agent.id, old)
    await clock.advance(timedelta(seconds=1))
    async with inside(app, world.org_id):
        for id, (old, new) in zip(made, pairs, strict=True):
            error = await refused(app, "update session set status = $2 where id = $1", id, new)
            row = await app.fetchrow(read, id)
            if new in sessions.TRANSITIONS[old]:
                assert (error, row["status"], row["touched"]) == (None, new, True), f"{old} → {new}"
            elif old == new:
                assert (error, row["status"], row["touched"]) == (None, old, False), f"{old} → {new}"
            else:
                assert error is not None, f"{old} → {new}"
                assert (error.sqlstate, error.detail) == ("CX409", "illegal_transition")
                assert (row["status"], row["touched"]) == (old, False)


@pytest.mark.proves("S0.1", "S2.8")
async def test_the_functions_equal_the_tables(app: asyncpg.Connection) -> None:
    machines: dict[str, Mapping[Any, Iterable[str]]] = {
        "job_may_move": jobs.TRANSITIONS,
        "session_may_move": sessions.TRANSITIONS,
        "approval_may_move": approvals.TRANSITIONS,
    }
    for function, table in machines.items():
        states = [*(str(state) for state in table), "", "pending", "NONSENSE"]
        edges = {(str(old), str(new)) for old, targets in table.items() for new in targets}
        for old, new in itertools.product(states, repeat=2):
            moves = await app.fetchval(f"select {function}($1, $2)", old, new)
            assert moves == ((old, new) in edges), (function, old, new)


async def test_an_illegal_move_reaches_the_caller_as_a_conflict(db: Database, world: World) -> None:
    delivery = await world.say()
    with pytest.raises(Conflict) as raised:
        async with db.transaction(world.org_id) as tx:
            await tx.rows("update job set status = 'COMPLETED' where id = $1", delivery.job_id)
    assert raised.value.code == "illegal_transition"
    assert "PENDING to COMPLETED" in raised.value.message


@pytest.mark.proves("S0.3")
async def test_history_says_why(app: asyncpg.Connection, world: World, clock: Clock) -> None:
    session = (await world.say()).session_id
    async with inside(app, world.org_id):
        job = await insert_job(app, world, session)
        for change in (
            "status = 'RUNNING'",
            "status = 'WAITING_FOR_APPROVAL', open_approvals = 2",
            "status = 'RUNNING', open_approvals = 0",
            "status = 'RETRY', retry_count = 1, next_retry_at = '2026-03-15T12:00:30Z'",
            "status = 'RUNNING'",
            "retry_count = 2",
            "status = 'RUNNING', retry_count = 3",
            "status = 'FAILED', error_message = 'out of disk'",
        ):
            await app.execute(f"update job set {change} where id = $1", job)
        rows = await app.fetch("select * from job_history where job_id = $1 order by id", job)
        end = await app.fetchval("select finished_at from job where id = $1", job)
    told = [(r["previous_status"], r["new_status"], json.loads(r["metadata"])) for r in rows]
    assert told == [
        (None, "PENDING", {}),
        ("PENDING", "RUNNING", {}),
        ("RUNNING", "WAITING_FOR_APPROVAL", {"open_approvals": 2}),
        ("WAITING_FOR_APPROVAL", "RUNNING", {}),
        ("RUNNING", "RETRY", {"retry_count": 1, "next_retry_at": "2026-03-15T12:00:30+00:00"}),
        ("RETRY", "RUNNING", {}),
        ("RUNNING", "FAILED", {"error": "out of disk"}),
    ]
    assert end == rows[-1]["created_at"]


@pytest.mark.proves("S0.2")
async def test_the_checks_of_a_job_hold_even_for_the_owner(admin: asyncpg.Connection, world: World) -> None:
    session = (await world.say()).session_id
    now = await admin.fetchval("select plane_now()")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"status": "NONSENSE"}, "chk_job_status"),
        ({"kind": "nonsense"}, "chk_job_kind"),
        ({"retry_count": -1}, "chk_job_retry_bounds"),
        ({"retry_count": 4, "max_retries": 3}, "chk_job_retry_bounds"),
        ({"max_retries": -1}, "chk_job_retry_bounds"),
        ({"max_retries": 101}, "chk_job_retry_bounds"),
        ({"status": "RETRY"}, "chk_job_retry_has_time"),
        ({"status": "WAITING_FOR_APPROVAL"}, "chk_job_waiting_has_approval"),
        ({"open_approvals": -1}, "chk_job_open_approvals"),
        ({"status": "FAILED", "finished_at": now}, "chk_job_failed_has_error"),
        *(({"status": s, "error_message": "x"}, "chk_job_terminal_has_end") for s in sorted(TERMINAL)),
        ({"finished_at": now}, "chk_job_terminal_has_end"),
        ({"status": "RUNNING", "finished_at": now}, "chk_job_terminal_has_end"),
        ({**LEASED, "leased_at": now, "runnable_at": now}, "chk_job_lease"),
        ({**LEASED, "leased_at": now, "status": "PENDING"}, "chk_job_lease"),
        (LEASED, "chk_job_lease"),
        ({"status": "RUNNING", "leased_at": now}, "chk_job_lease"),
        ({"status": "PENDING", "runnable_at": now, "holds": ["operator"], "held_at": now}, "chk_job_runnable"),
        ({"status": "WAITING_FOR_APPROVAL", "open_approvals": 1, "runnable_at": now}, "chk_job_runnable"),
        ({"status": "PAUSED", "holds": ["operator"], "held_at": now, "runnable_at": now}, "chk_job_runnable"),
        *(
            ({"status": s, "error_message": "x", "finished_at": now, "runnable_at": now}, "chk_job_runnable")
            for s in sorted(TERMINAL)
        ),
        ({"status": "PAUSED"}, "chk_job_paused_is_held"),
        ({"holds": ["operator"]}, "chk_job_held_since"),
        ({"held_at": now}, "chk_job_held_since"),
        ({"checkpoint": "{}"}, "chk_job_checkpoint_is_signed"),
        ({"checkpoint_mac": b"signed"}, "chk_job_checkpoint_is_signed"),
    ]
    for values, constraint in wrong:
        with pytest.raises(asyncpg.CheckViolationError) as raised:
            await insert_job(admin, world, session, **values)
        assert raised.value.constraint_name == constraint, values
    fine: list[dict[str, Any]] = [
        {"retry_count": 3, "max_retries": 3}, {"max_retries": 0}, {"max_retries": 100},
        {**LEASED, "leased_at": now}, {**LEASED, "leased_at": now, "holds": ["operator"], "held_at": now},
        *({"status": s, "runnable_at": now, "next_retry_at": now} for s in ("PENDING", "RUNNING", "RETRY", "SLEEPING")),
        {"status": "PAUSED", "holds": ["operator", "session"], "held_at": now},
        {"checkpoint": "{}", "checkpoint_mac": b"signed"},
    ]  # fmt: skip
    for values in fine:
        await insert_job(admin, world, session, **values)


async def test_moving_a_job_must_satisfy_the_checks_too(app: asyncpg.Connection, world: World) -> None:
    job = (await world.say()).job_id
    async with inside(app, world.org_id):
        await app.execute("update job set status = 'RUNNING', runnable_at = null where id = $1", job)
        for change, constraint in (
            ("status = 'RETRY'", "chk_job_retry_has_time"),
            ("status = 'WAITING_FOR_APPROVAL'", "chk_job_waiting_has_approval"),
            ("status = 'FAILED'", "chk_job_failed_has_error"),
            ("finished_at = plane_now()", "chk_job_terminal_has_end"),
            ("retry_count = max_retries + 1", "chk_job_retry_bounds"),
        ):
            error = await refused(app, f"update job set {change} where id = $1", job)
            assert isinstance(error, asyncpg.CheckViolationError), change
            assert error.constraint_name == constraint


async def test_a_session_has_at_most_one_open_conversational_job(app: asyncpg.Connection, world: World) -> None:
    delivery = await world.say()
    async with inside(app, world.org_id):
        for status in JobStatus:
            await legal_job(app, world, delivery.session_id, status, kind="task")
        for status in TERMINAL:
            await legal_job(app, world, delivery.session_id, status, kind="conversation")
        for status in jobs.OPEN:
            with pytest.raises(asyncpg.UniqueViolationError) as raised:
                async with app.transaction():
                    await legal_job(app, world, delivery.session_id, status, kind="conversation")
            assert raised.value.constraint_name == "uq_job_open_conversation"
        await app.execute("update job set status = 'CANCELLED', runnable_at = null where id = $1", delivery.job_id)
        await insert_job(app, world, delivery.session_id, kind="conversation")


@pytest.mark.proves("S2.9")
async def test_a_person_has_at_most_one_open_conversation_with_an_agent(db: Database, world: World) -> None:
    delivery = await world.say()
    insert = """
        insert into session (org_id, id, kind, user_account_id, agent_id, status, opened_by)
        values ($1, $2, $3, $4, $5, $6, $1)
    """
    args = (delivery.user_account_id, world.agent.id)
    for status in ("CREATED", "ACTIVE", "PAUSED"):
        with pytest.raises(AlreadyExists):
            async with db.transaction(world.org_id) as tx:
                await tx.rows(insert, tx.org, new_id(), "conversation", *args, status)
    async with db.transaction(world.org_id) as tx:
        await tx.rows(insert, tx.org, new_id(), "conversation", *args, "TERMINATED")
        await tx.rows(insert, tx.org, new_id(), "programmatic", *args, "ACTIVE")
        await tx.rows("update session set status = 'TERMINATED' where id = $1", delivery.session_id)
        await tx.rows(insert, tx.org, new_id(), "conversation", *args, "ACTIVE")


@pytest.mark.proves("S0.4")
async def test_the_app_may_change_only_the_moving_parts_of_a_job(app: asyncpg.Connection, world: World) -> None:
    await populate(world)
    async with inside(app, world.org_id):
        assert await _changeable(app, "job") == JOB_COLUMNS_OF_THE_APP
        assert await _changeable(app, "tool_call") == CALL_COLUMNS_OF_THE_APP
        assert await _changeable(app, "approval_request") == APPROVAL_COLUMNS_OF_THE_APP
        assert await _changeable(app, "approval_grant") == {"consumed_at"}
        # A yes may become a no while others are still to be heard.
        changeable = {"decision", "answer", "reason", "channel", "created_at"}
        assert await _changeable(app, "approval_vote") == changeable


async def _changeable(app: asyncpg.Connection, table: str) -> set[str]:
    columns = await app.fetch(
        "select attname::text from pg_attribute where attrelid = $1::text::regclass and attnum > 0"
        " and attgenerated = '' and not attisdropped",
        table,
    )
    allowed = set()
    for (column,) in columns:
        error = await refused(app, f"update {table} set {column} = {column}")
        if error is None:
            allowed.add(column)
        else:
            assert isinstance(error, asyncpg.InsufficientPrivilegeError), column
    return allowed


async def test_what_is_append_only_can_only_be_appended_to(app: asyncpg.Connection, world: World) -> None:
    await populate(world)
    async with inside(app, world.org_id):
        for table in APPEND_ONLY:
            assert await app.fetchval(f"select count(*) from {table}") > 0
            for statement in (
                f"update {table} set created_at = created_at",
                f"update {table} set org_id = org_id",
                f"delete from {table}",
            ):
                assert isinstance(await refused(app, statement), asyncpg.InsufficientPrivilegeError), statement


async def test_the_app_may_delete_little_and_truncate_nothing(
    app: asyncpg.Connection, admin: asyncpg.Connection, world: World
) -> None:
    erasable = set()
    async with inside(app, world.org_id):
        for table in await tables(admin, partitions=True):
            assert isinstance(await refused(app, f"truncate {table}"), asyncpg.InsufficientPrivilegeError)
            error = await refused(app, f"delete from {table} where false")
            if error is None:
                erasable.add(table)
            else:
                assert isinstance(error, asyncpg.InsufficientPrivilegeError), table
    # What is over: links and sessions of browsers, tokens, secrets and keys that nobody uses, text that a message stands for by now, states of
    # runs whose session ended, keys of calls that did not happen, and old versions of the tools of remote workers.
    over = {
        "account_link",
        "channel_prompt",
        "login_link",
        "enrolment_code",
        "browser_session",
        "text_chunk",
        "approval_token",
        "signing_secret",
        "identity_code",
        "identity_guess",
        "model_key",
        "session_state",
        "external_call_key",
        "org_tool_version",
    }
    assert erasable == {"team", "team_member", "agent"} | over
