"""The permissions of a session on the command line."""

from __future__ import annotations

import json

import pytest

from cortex_plane.kernel.text import is_hidden
from tests.cli.test_cli_absences import live
from tests.cli.test_cli_jobs import Live
from tests.fixtures.external_gates import DESK, desk
from tests.fixtures.hostile import HOSTILE, INVISIBLE

__all__ = ["live"]


@pytest.mark.proves("D.387")
def test_permissions_are_readable_and_what_others_wrote_is_shown_as_text(live: Live) -> None:
    shell = live.shell
    file = shell.folder / "desk.json"
    made = json.loads(desk())
    # Characters that nobody sees are refused in a question.
    question = "".join(each for each in HOSTILE if not is_hidden(each))
    made["checkpoints"][0]["questions"][0]["question"] = question
    file.write_text(json.dumps(made))
    shell.run("atlas", "publish", str(file))
    session = str(shell.one("session", "create", "deployer", "--atlas", DESK)["id"])
    told = shell.run("session", "permissions", session).stdout
    assert not INVISIBLE & set(told)
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert any(line.startswith(f"ticket.get asks_first agent gate:{DESK}/onboarding") for line in lines)
    assert f"{DESK}/basic: locked" in lines
    assert "asked first" in lines
    assert any(line.startswith(f"{DESK}/onboarding, the agent: ") for line in lines)
    assert any(line.startswith(f"{DESK}/onboarding: ") for line in lines)
    found = shell.one("session", "permissions", session)
    waiting = found["waiting"]
    assert isinstance(waiting, list)
    assert waiting[0]["questions"][0]["question"] == question
    free = str(shell.one("session", "create", "deployer")["id"])
    assert "nothing yet" in shell.run("session", "permissions", free).stdout
    missing = shell.run("session", "permissions", "00000000-0000-7000-8000-000000000000", expect=3)
    assert "no such session" in missing.stderr
