"""The plays of `test_four_eyes_model.py` find a rule that is missing: each of these faults lets one human complete what policy gives
to two."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from cortex_plane.approvals import rules as approval_rules
from tests.approvals.test_four_eyes_model import play
from tests.fixtures.servers import TestServer
from tests.fixtures.warm_databases import WarmDatabases

FAULTS: dict[str, tuple[ModuleType, str, Callable[..., Any]]] = {
    "accounts of one human count apart": (approval_rules, "one_human", lambda cause: None),
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
