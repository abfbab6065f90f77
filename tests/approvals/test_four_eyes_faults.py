"""The plays of `test_four_eyes_model.py` find a rule that is missing: each of these faults lets one human complete what policy gives
to two."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from cortex_plane.approvals.model.approvals import Approval, Choice
from cortex_plane.approvals.rules import decisions as approval_rules
from cortex_plane.kernel.errors import CortexError
from cortex_plane.tenancy.model.access import Actor
from tests.approvals.test_four_eyes_model import play
from tests.fixtures.servers import TestServer
from tests.fixtures.warm_databases import WarmDatabases

_refusal = approval_rules.refusal


def _without_one_human(approval: Approval, actor: Actor, choice: Choice) -> CortexError | None:
    return None if approval.refusal == "one_human" else _refusal(approval, actor, choice)


FAULTS: dict[str, tuple[ModuleType, str, Callable[..., Any]]] = {
    "accounts of one human count apart": (approval_rules, "refusal", _without_one_human),
    "whoever edits a call approves it": (approval_rules, "is_vote", lambda opened, edit: True),
}
MOST = 60
"""Plays. One of the first few finds each."""


@pytest.mark.proves("D.630")
@pytest.mark.parametrize("fault", FAULTS)
async def test_plays_find_a_missing_rule(
    server: TestServer, warm_databases: WarmDatabases, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    for seed in range(MOST):
        story = await play(server, warm_databases, seed, 60)
        if story[-1].startswith("BROKEN"):
            return
    pytest.fail(f"{MOST} plays did not find it")
