"""Absences and delegation from the command line."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.tenancy.model.orgs import Role
from tests.cli.test_cli import Shell
from tests.cli.test_cli_jobs import Live, _serving
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, decide, waiting
from tests.fixtures.hostile import HOSTILE, INVISIBLE
from tests.fixtures.people import Person, World, apply_policies

TWO = "policies: [{name: two, target: ship, effect: requires_approval, template: dev_review, quorum: 2}]"


@pytest.fixture
def live(urls: Urls, tmp_path: Path) -> Iterator[Live]:
    """A plane that serves, and works only when it is told to."""
    ready: list[Live] = []
    is_ready, leave = threading.Event(), threading.Event()

    async def main() -> None:
        db = await Database.open(urls.app, max_size=10, vault=Vault(bytes(range(32))))
        world = await World.create(db, "strict", policies=None)
        async with _serving(db) as url:
            names = ("CORTEX_", "DATABASE_")
            environment = {k: v for k, v in os.environ.items() if not k.startswith(names)}
            environment |= {"CORTEX_URL": url, "CORTEX_KEY": world.admin.secret, "COLUMNS": "200"}
            shell = Shell(tmp_path, environment)
            ready.append(Live(asyncio.get_running_loop(), world, shell, asyncio.Event(), asyncio.Event()))
            is_ready.set()
            await asyncio.to_thread(leave.wait)
        await db.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    with capture_logs():  # they would stand between what the commands print
        thread.start()
        try:
            assert is_ready.wait(30)
            yield ready[0]
        finally:
            leave.set()
            thread.join()


def person(live: Live, *roles: Role, name: str) -> Person:
    return live.begin(live.world.person(*roles, name=name))()


@pytest.mark.proves("D.182")
def test_go_away_look_and_come_back(live: Live) -> None:
    shell = live.shell
    bea, pat = person(live, Role.APPROVER, name="Bea"), person(live, Role.MEMBER, name="Pat")
    own: dict[str, Any] = {"CORTEX_KEY": pat.secret}
    assert shell.run("absence", "list", **own).stdout == "nothing yet\n"
    assert [each["display_name"] for each in shell.many("absence", "delegates", **own)] == ["Ada", "Bea"]
    made = shell.one("absence", "add", "--to", "Bea", "--for", "3d", "--reason", HOSTILE, **own)
    assert (made["member"], made["delegate"], made["status"]) == ("Pat", "Bea", "current")
    ends = datetime.fromisoformat(str(made["ends_at"]))
    assert timedelta(0) <= datetime.now(UTC) + timedelta(days=3) - ends < timedelta(minutes=5)
    table = shell.run("absence", "list", **own).stdout
    assert "current" in table
    assert not INVISIBLE & set(table)
    day = (datetime.now().astimezone() + timedelta(days=10)).date()
    later = shell.one(
        "absence", "add", "--to", str(bea.actor.user_account_id), "--from", day.isoformat(), "--until",
        (day + timedelta(days=1)).isoformat(), **own,
    )  # fmt: skip
    assert later["status"] == "planned"
    starts = datetime.fromisoformat(str(later["starts_at"])).astimezone()
    assert (starts.date(), starts.hour, starts.minute) == (day, 0, 0), "a day begins here at midnight"
    assert shell.one("absence", "cancel", str(made["id"]), **own)["status"] == "cancelled"
    assert [each["id"] for each in shell.many("absence", "list", **own)] == [later["id"]]
    assert len(shell.many("absence", "list", "--all", **own)) == 2
    assert [each["id"] for each in shell.many("absence", "list", "--member", "Pat")] == [later["id"]]
    given = shell.one("absence", "add", "--to", "Bea", "--for", "2h", "--member", "Pat")
    assert (given["member"], given["created_by"]) == ("Pat", "Ada")


@pytest.mark.proves("D.182")
def test_what_makes_no_sense_is_refused_with_what_to_do(live: Live) -> None:
    shell = live.shell
    for _ in range(2):
        person(live, Role.MEMBER, name="Kim")
    bea = person(live, Role.APPROVER, name="Bea")
    for words, code, said in (
        (["--to", "Bea"], 2, "either --until"),
        (["--to", "Bea", "--until", "2099-01-01", "--for", "3d"], 2, "either --until"),
        (["--to", "Bea", "--for", "three days"], 2, "no span of time"),
        (["--to", "Bea", "--for", "0d"], 2, "no span of time"),
        (["--to", "Bea", "--until", "soon"], 2, "is no time"),
        (["--to", "Bea", "--until", "2099-01-01"], 2, "within a year"),
        (["--to", "Bea", "--until", "2020-01-01"], 2, "end before it begins"),
        (["--to", "Kim", "--for", "3d"], 2, "Several members"),
        (["--to", "Nobody", "--for", "3d"], 3, "no active member called"),
        (["--to", "Ada", "--for", "3d"], 3, "besides you"),
        (["--to", "Bea", "--for", "3d", "--member", "Bea"], 2, "stand in for themselves"),
    ):
        assert said in shell.run("absence", "add", *words, expect=code).stderr, words
    assert shell.many("absence", "list", "--all") == []
    shell.one("absence", "add", "--to", "Bea", "--for", "3d")
    back: dict[str, Any] = {"CORTEX_KEY": bea.secret}
    circle = shell.run("absence", "add", "--to", "Ada", "--for", "1d", expect=4, **back).stderr
    assert "absence_cycle" in circle
    other = shell.run("absence", "add", "--to", "Ada", "--for", "1d", "--member", "Kim", expect=2, **back)
    assert "Several members" in other.stderr
    guest: dict[str, Any] = {"CORTEX_KEY": person(live, Role.GUEST, name="Gus").secret}
    assert "forbidden" in shell.run("absence", "list", expect=5, **guest).stderr


@pytest.mark.proves("D.183")
def test_hand_a_request_on_and_see_it_on_the_card(live: Live) -> None:
    shell = live.shell
    bea, cal = person(live, Role.APPROVER, name="Bea"), person(live, Role.APPROVER, name="Cal")
    person(live, Role.MEMBER, name="Dot")

    async def asked() -> Approval:
        await apply_policies(live.world.db, live.world.admin.actor, TWO)
        _, (request,) = await waiting(live.world, Shipping())
        await decide(live.world, request, by=cal, reason=HOSTILE)
        return request

    request = live.begin(asked())()
    own: dict[str, Any] = {"CORTEX_KEY": bea.secret}
    offered = shell.many("absence", "delegates", "--approval", str(request.id), **own)
    assert [each["display_name"] for each in offered] == ["Dot"], "Ada asked for it, and Cal has voted"
    words = ("approval", "delegate", str(request.id))
    assert "delegate_self_approval" in shell.run(*words, "--to", "Ada", expect=5, **own).stderr
    assert "member_not_found" in shell.run(*words, "--to", "Nobody", expect=3, **own).stderr
    told = shell.run(*words, "--to", "Dot", "--reason", HOSTILE, **own).stdout
    assert told == "ship waits for Dot instead of you\n"
    assert "delegated_away" in shell.run(*words, "--to", "Dot", expect=5, **own).stderr
    card = shell.run("approval", "show", str(request.id)).stdout
    assert "votes       1 so far; it needs 2 votes" in card
    assert "Cal · approved · api: <script>" in card
    assert "handed on   Bea → Dot: <script>" in card
    assert not INVISIBLE & set(card)
