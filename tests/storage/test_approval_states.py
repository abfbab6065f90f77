"""The database moves an approval along the edges of the domain's machine, and along no other."""

from __future__ import annotations

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import TRANSITIONS, ApprovalStatus
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.people import World

MOVE = """
update approval_request set status = $2, resolved_at = case when $2 = 'pending' then null else now() end,
  resolved_by_name = 'somebody', answer = case when $2 = 'responded' then '"words"'::jsonb end, next_action_at = case when $2 = 'pending' then now() end
where id = $1
"""


async def test_the_trigger_refuses_every_other_edge(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    for first in TRANSITIONS[ApprovalStatus.PENDING]:
        for second in ApprovalStatus:
            if second is first:
                continue
            transaction = admin.transaction()
            await transaction.start()
            try:
                await admin.execute(MOVE, asked.id, first.value)
                with pytest.raises(asyncpg.PostgresError) as told:
                    await admin.execute(MOVE, asked.id, second.value)
                assert (told.value.sqlstate, told.value.detail) == ("CX409", "illegal_transition")
            finally:
                await transaction.rollback()


async def test_an_approval_without_its_invariants_cannot_be_written(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    for broken in (
        "resolved_at = now()",
        "next_action_at = null",
        "deadline = null",
        "status = 'approved', resolved_at = now(), next_action_at = null",
        "action_summary = ' '",
        "input_hash = 'short'",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await admin.execute(f"update approval_request set {broken} where id = $1", asked.id)
