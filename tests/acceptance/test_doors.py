"""Agents of five kinds behind one plane: their requests stand in one inbox, people decide them through different doors, and new processes
go on as they decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane import AgentDraft, ModelConfig
from cortex_plane.agents import verbs as agents
from cortex_plane.calls.verbs import deadlines
from cortex_plane.tenancy.model.orgs import Role
from tests.cli.test_cli import Shell
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.visitors import Visitor
from tests.frameworks.office_server import acts_of
from tests.frameworks.victim_server import Ended, VictimServer, victim_server

AGENTS = {
    "langgraph": "langchain", "pydantic-ai": "pydantic-ai", "openai-agents": "openai-agents", "claude-code": "hooks", "mcp-client": "gateway",
}  # fmt: skip
"""By their slugs in the plane, how each runs."""
ONE_POLICY = """
policies:
  - {name: refunds-need-a-person, target: "*refund", effect: requires_approval, timeout: 1h}
"""


class Doors:
    """One plane, an approver, and an agent of each kind."""

    def __init__(self, machine: VictimServer, server: Apart, world: World, approver: Person, folder: Path) -> None:
        self._machine, self._server, self._world, self._folder = machine, server, world, folder
        self.approver = approver
        self.http = httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False)
        self.folders = {slug: folder / slug for slug in AGENTS}

    async def run(self, slug: str, **more: Any) -> Ended:
        """In a process of its own, with nothing of an earlier one but its folder."""
        at = more.pop("at", None)
        self.folders[slug].mkdir(exist_ok=True)
        errand = {
            "url": self._server.url, "secret": self._world.service.secret, "folder": str(self.folders[slug]), "orders": [f"A-{slug}"],
            "on_uncertain": "ask_human", "agent": slug, **more,
        }  # fmt: skip
        return await self._machine.run(AGENTS[slug], errand, at=at)

    async def cards(self) -> dict[str, dict[str, Any]]:
        """The inbox of the approver, by agent."""
        response = await self.http.get("/v1/approvals", params={"status": "pending"}, headers=self.approver.headers)
        assert response.status_code == 200, response.text
        return {card["agent"]: card for card in response.json()["items"]}

    async def decide(self, card: dict[str, Any], **decision: Any) -> None:
        body = {"version": card["version"], "input_hash": card["input_hash"], **decision}
        path = f"/v1/approvals/{card['id']}/decide"
        response = await self.http.post(path, json=body, headers=self.approver.headers)
        assert response.status_code == 200, response.text

    async def deny_in_terminal(self, card: dict[str, Any], reason: str) -> None:
        shell = Shell(self._folder, {"CORTEX_URL": self._server.url, "CORTEX_KEY": self.approver.secret})
        await asyncio.to_thread(shell.run, "approval", "deny", card["id"], "--reason", reason)

    async def approve_on_page(self, card: dict[str, Any]) -> None:
        visitor = await Visitor.log_in(self.http, self._world, self.approver)
        assert (await visitor.decide(card["id"], "approved")).status_code < 400

    def effects(self) -> dict[str, list[str]]:
        return {slug: acts_of(folder) for slug, folder in self.folders.items()}


@pytest.fixture(scope="module")
def machine() -> Iterator[VictimServer]:
    with victim_server() as running:
        yield running


@pytest_asyncio.fixture
async def doors(machine: VictimServer, urls: Urls, strict: World, tmp_path: Path) -> AsyncIterator[Doors]:
    for slug in AGENTS:
        draft = AgentDraft(
            name=slug, slug=slug, role="Support", team="main", model_config=ModelConfig(model="scripted")
        )
        await agents.create_agent(strict.db, strict.admin.actor, draft)
    await apply_policies(strict.db, strict.admin.actor, ONE_POLICY)
    approver = await strict.person(Role.APPROVER, name="Ann")
    with beside(urls.app) as server:
        doors = Doors(machine, server, strict, approver, tmp_path)
        yield doors
        await doors.http.aclose()


@pytest.mark.proves("D.1063")
async def test_agents_of_five_kinds_wait_in_one_inbox_and_go_on_as_people_decided(
    doors: Doors, strict: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    # One process is killed while it waits; the others have ended.
    killed = await doors.run("pydantic-ai", wait=30, at="wait:before#1")
    assert killed.status == -SIGKILL, killed.log
    for slug in AGENTS.keys() - {"pydantic-ai"}:
        waits = await doors.run(slug)
        assert (waits.status, waits.text) == (0, None), waits.log

    cards = await doors.cards()
    assert cards.keys() == AGENTS.keys()
    assert {card["rule"].partition("@")[0] for card in cards.values()} == {"org:refunds-need-a-person"}
    await doors.approve_on_page(cards["langgraph"])
    await doors.deny_in_terminal(cards["claude-code"], "not this customer")
    edited = {"order": "A-other", "cents": 400}
    await doors.decide(cards["openai-agents"], decision="approved", arguments=edited)
    await doors.decide(cards["pydantic-ai"], decision="approved", reason="he waited long enough")
    assert (await doors.cards()).keys() == {"mcp-client"}

    texts = {slug: (await doors.run(slug)).text or "" for slug in AGENTS.keys() - {"mcp-client"}}
    assert "A-langgraph is paid back." in texts["langgraph"]
    assert "A-pydantic-ai is paid back." in texts["pydantic-ai"]
    assert "A-other is paid back." in texts["openai-agents"]
    assert json.dumps(edited, sort_keys=True, separators=(",", ":")) in texts["openai-agents"]
    assert "not this customer" in texts["claude-code"]
    assert (await doors.run("mcp-client")).text is None
    await clock.advance(timedelta(hours=2))
    await deadlines.tick(strict.db, uuid4(), "scheduler")
    assert "timed out" in str((await doors.run("mcp-client")).text)

    paid = {"langgraph": ["A-langgraph"], "pydantic-ai": ["A-pydantic-ai"], "openai-agents": ["A-other"]}
    assert doors.effects() == {"claude-code": [], "mcp-client": [], **paid}
    assert await doors.cards() == {}
    trail = await doors.http.get("/v1/audit/verification", headers=strict.admin.headers)
    assert trail.json()["faults"] == []
    entries = await doors.http.get("/v1/calls", params={"limit": 100}, headers=strict.admin.headers)
    assert sorted(call["status"] for call in entries.json()["items"]) == ["completed"] * 3 + ["rejected"] * 2
