"""Deliveries from the command line."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from structlog.testing import capture_logs

from cortex_plane.tenancy.model.orgs import Role
from tests.channels.behaviour import ASK
from tests.cli.test_cli import Shell
from tests.cli.test_cli_jobs import _serving
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.notifications import dead_letter
from tests.fixtures.people import World, apply_policies


async def test_dead_letters_from_the_command_line(strict: World, tmp_path: Path) -> None:
    await strict.person(Role.APPROVER, name="Bea")
    await apply_policies(strict.db, strict.admin.actor, ASK)
    _, (asked,) = await waiting(strict, Shipping())
    id = await dead_letter(strict, asked.id)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    with capture_logs():
        async with _serving(strict.db) as url:
            access = {"CORTEX_URL": url, "CORTEX_KEY": strict.admin.secret, "COLUMNS": "300"}
            await asyncio.to_thread(_use, Shell(tmp_path, kept | access), str(id), str(asked.id))


def _use(shell: Shell, id: str, approval_id: str) -> None:
    table = shell.run("delivery", "list", "--status", "dead").stdout
    assert id in table
    assert "550 nobody lives here" in table
    assert shell.json("delivery", "list", "--status", "delivered") == []
    assert len(shell.json("delivery", "list", "--approval", approval_id)) == 1  # type: ignore[arg-type]
    assert shell.one("delivery", "show", id)["attempts"] == 12
    assert shell.one("delivery", "resend", id)["status"] == "pending"
    again = shell.run("delivery", "resend", id, expect=4)
    assert "Only what was given up can be sent again." in again.stderr
    assert shell.one("org", "update", "--redact", "iban", "--redact", "*pin*")["settings"] == {
        "guests_may_chat": True,
        "redact": ["iban", "*pin*"],
    }
