"""Tokens and secrets in the database: found by their digest before the org is known, by index, and by nobody else."""

from __future__ import annotations

import re

import asyncpg
import pytest

from cortex_plane.approvals.model.credentials import digest
from cortex_plane.approvals.verbs.credentials import new_approval_token
from cortex_plane.kernel.ids import new_id
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.credentials import link_for, token_for
from tests.fixtures.people import World
from tests.fixtures.servers import CREDENTIAL_KEY
from tests.storage.tenants import inside

ROWS = 3000
NOBODY = "01936f3a-0000-7000-8000-000000000000"

MANY_TOKENS = """
insert into approval_token (org_id, id, approval_id, user_account_id, token_hash, version, input_hash, expires_at)
select t.org_id, gen_random_uuid(), gen_random_uuid(), t.user_account_id, sha256(n::text::bytea), 1, t.input_hash,
  t.expires_at + make_interval(secs => n)
from approval_token t, generate_series(1, $1) n
"""
MANY_REQUESTS = """
insert into approval_request (org_id, id, kind, session_id, job_id, agent_id, step_index, action_type, tool_name,
  target, arguments, input_hash, risk, action_summary, rule, policy_version, template, required_clearance,
  timeout_seconds, approvers, on_deny, self_approval, terms_hash, requested_at, deadline, next_action_at)
select r.org_id, gen_random_uuid(), r.kind, r.session_id, r.job_id, r.agent_id, r.step_index, r.action_type, r.tool_name,
  r.target, r.arguments, sha256(n::text::bytea), r.risk, r.action_summary, r.rule, r.policy_version, r.template,
  r.required_clearance, r.timeout_seconds, r.approvers, r.on_deny, r.self_approval, r.terms_hash, r.requested_at,
  r.deadline, r.next_action_at
from approval_request r, generate_series(1, $1) n
"""
STATEMENTS = {
    "a token by its digest": (
        "select t.org_id, t.id from approval_token t where t.token_hash = sha256('x')",
        "uq_approval_token_hash",
    ),
    "the org of a request": (
        "select r.org_id, r.id from approval_request r where r.id = '01936f3a-0000-7000-8000-000000000000'",
        "idx_approval_request_id",
    ),
    "the tokens of a voter": (
        (
            "select from approval_token t where t.org_id = '01936f3a-0000-7000-8000-000000000000'"
            " and t.approval_id = '01936f3a-0000-7000-8000-000000000000' and t.used_at is null"
            " and t.user_account_id = '01936f3a-0000-7000-8000-000000000000'"
        ),
        "idx_approval_token_a",  # with the account or without it: both are few
    ),
    "what is too old": (
        (
            "select t.org_id from approval_token t"
            " where t.expires_at <= (select plane_now()) - interval '30 days' order by t.expires_at limit 200"
        ),
        "idx_approval_token_expiry",
    ),
}


@pytest.mark.proves("D.150")
async def test_a_token_resolves_to_its_org_and_id_and_says_nothing_else(
    app: asyncpg.Connection, admin: asyncpg.Connection, strict: World
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    id = await admin.fetchval("select id from approval_token")
    resolve = "select * from resolve_approval_token($1)"
    assert [dict(row) for row in await app.fetch(resolve, CREDENTIAL_KEY.lookup(digest(token)))] == [
        {"org_id": strict.org_id, "id": id}
    ]
    for unknown in (digest(new_approval_token()), b"", bytes(32), None):
        assert await app.fetch(resolve, unknown) == []
    (found,) = await app.fetch("select * from resolve_approval($1)", approval.id)
    assert dict(found) == {"org_id": strict.org_id, "id": approval.id}
    for missing in (new_id(), None):
        assert await app.fetch("select * from resolve_approval($1)", missing) == []


@pytest.mark.proves("D.157")
async def test_the_scheduler_sees_how_old_secrets_are_and_not_what_they_say(
    admin: asyncpg.Connection, strict: World
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    await token_for(strict, approval.id, strict.admin.actor)
    await link_for(strict, approval)
    async with admin.transaction():
        await admin.execute("set local role cortex_scheduler")
        assert await admin.fetchval("select count(created_at) from signing_secret") == 1
        for column, table in (("sealed", "signing_secret"), ("token_hash", "approval_token")):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with admin.transaction():
                    await admin.fetch(f"select {column} from {table}")


async def test_the_app_changes_nothing_of_a_token_but_its_use(app: asyncpg.Connection, strict: World) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    await token_for(strict, approval.id, strict.admin.actor)
    for column in ("user_account_id", "approval_id", "version", "input_hash", "token_hash", "expires_at"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with inside(app, strict.org_id):
                await app.execute(f"update approval_token set {column} = {column}")
    # `sealed` is written when the master key is replaced.
    for column in ("purpose", "created_at"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with inside(app, strict.org_id):
                await app.execute(f"update signing_secret set {column} = {column}")


async def test_tokens_and_links_are_found_by_index(admin: asyncpg.Connection, strict: World) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    await token_for(strict, approval.id, strict.admin.actor)
    await admin.execute("alter table approval_token disable trigger all")
    await admin.execute("alter table approval_request disable trigger all")
    await admin.execute(MANY_TOKENS, ROWS)
    await admin.execute(MANY_REQUESTS, ROWS)
    await admin.execute("analyze approval_token, approval_request")
    for name, (text, index) in STATEMENTS.items():
        # Of the org that has them all: of one without rows every index seems as good as any other.
        statement = text.replace(f"org_id = '{NOBODY}'", f"org_id = '{strict.org_id}'")
        plan = "\n".join(row[0] for row in await admin.fetch(f"explain {statement}"))
        assert "Seq Scan" not in plan, f"{name}:\n{plan}"
        used = re.findall(r"(?:using|Index Scan on) (\w+)", plan)
        assert any(each.startswith(index) for each in used), f"{name}:\n{plan}"
        condition = re.findall(r"Index Cond: (.*)", plan)
        assert name != "the tokens of a voter" or "approval_id" in condition[0], plan
