"""The client where it has a mind of its own: whom it tells a key, and how it names things."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from cortex_plane import Client, CortexError
from cortex_plane.db.database import Database
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.errors import AlreadyExists, InUse, InvalidInput, NotFound, Stale, Unavailable
from cortex_plane.main.api_process import create_app
from cortex_plane.tenancy.model.orgs import TeamChange, TeamDraft
from tests.fixtures.people import World


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CORTEX_URL", "CORTEX_KEY", "CORTEX_ORG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "access.json").write_text(json.dumps({"url": "http://here", "key": "cortex_key_kept"}))
    return tmp_path


def test_the_kept_key_goes_to_the_kept_address_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client.here(home).url == "http://here"
    monkeypatch.setenv("CORTEX_URL", "http://elsewhere")
    with pytest.raises(Unavailable, match="CORTEX_KEY"):
        Client.here(home)
    monkeypatch.setenv("CORTEX_KEY", "cortex_key_given")
    assert Client.here(home).url == "http://elsewhere"


def test_the_plane_is_looked_for_where_the_command_line_looks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORTEX_HOME", str(home))
    assert (Client.here().url, Client.without_key().url) == ("http://here", "http://here")
    monkeypatch.delenv("CORTEX_HOME")
    monkeypatch.chdir(home)
    with pytest.raises(Unavailable, match=r"\.cortex"):
        Client.here()


def test_without_an_address_it_says_what_to_do(tmp_path: Path, home: Path) -> None:
    with pytest.raises(Unavailable, match="make up"):
        Client.here(tmp_path / "nothing")


async def test_problems_become_the_errors_that_the_plane_raised(db: Database, world: World) -> None:
    metrics = Metrics()
    transport = httpx.ASGITransport(framed(create_app(db, metrics)))
    async with Client("http://plane", world.admin.secret, transport=transport) as plane:
        with pytest.raises(NotFound) as missing:
            await plane.agents.get("nobody")
        assert missing.value.code == "agent_not_found"
        assert missing.value.hint
        with pytest.raises(AlreadyExists):
            await plane.teams.create(TeamDraft(slug="main", name="Main"))
        with pytest.raises(InUse):
            await plane.teams.delete("main")
        with pytest.raises(Stale):
            await plane.teams.update("main", TeamChange(name="Other"), revision=7)
        # A name is one part of a path, whatever stands in it.
        with pytest.raises(CortexError):
            await plane.agents.delete("../teams/main")
        assert (await plane.teams.get("main")).name == "Main"
        assert [team.slug async for team in plane.teams.list(limit=1)] == ["main"]
    metrics.close()


def test_a_key_is_in_no_repr() -> None:
    assert "secret" not in repr(Client("http://127.0.0.1:1", "secret").transport._plane)


@pytest.mark.parametrize(
    "url",
    ["http://user:word@127.0.0.1:1", "http://127.0.0.1:1/?org=a", "http://127.0.0.1:1/#x", "127.0.0.1:1", "http://[::"],
)
def test_an_address_that_is_not_plain_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="without a password"):
        Client(url, "secret")
