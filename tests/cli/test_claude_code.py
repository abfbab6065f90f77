"""Claude Code itself behind the plane: its hooks are those that `cortex hook install` writes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.acceptance.planes import Plane
from tests.cli.claude_code import MISSING, ClaudeCode, program
from tests.cli.test_cli import Shell, shell
from tests.providers.answers import Answer, call, says
from tests.providers.anthropic import AnthropicServer
from tests.providers.serving import Asked, serving

__all__ = ["shell"]
pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)


class ClaudeModel(AnthropicServer):
    def check(self, asked: Asked) -> None:
        """Claude Code sends what is no part of the public protocol, such as messages of the system."""


async def approve(api: httpx.AsyncClient, command: str | None = None, **more: Any) -> None:
    """The only request, or the one about this command."""
    requests = (await api.get("/v1/approvals", params={"status": "pending"})).json()["items"]
    (request,) = [request for request in requests if command in (None, request["arguments"]["command"])]
    decision = {"decision": "approved", "version": request["version"], "input_hash": request["input_hash"], **more}
    decided = await api.post(f"/v1/approvals/{request['id']}/decide", json=decision)
    assert decided.status_code == 200, decided.text


async def seen(api: httpx.AsyncClient, noun: str, *, count: int = 1, **query: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if len((await api.get(f"/v1/{noun}", params=query)).json()["items"]) >= count:
                return
            await asyncio.sleep(0.05)  # another program acts


@pytest.mark.proves("D.950", "D.952", "D.955", "D.1053")
async def test_claude_code_asks_the_plane_and_acts_once(plane: Plane, shell: Shell) -> None:
    # A command has an event loop of its own.
    await asyncio.to_thread(shell.run, "agent", "create", "claude-code", "--model", "none")
    await asyncio.to_thread(shell.run, "hook", "install", "claude", "--policy")
    settings = shell.folder / ".claude" / "settings.json"
    # Where the hook does not answer, this rule would let the command run.
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"permissions": {"allow": ["Bash"]}}))
    access = json.loads((shell.folder / ".cortex" / "access.json").read_text())
    headers = {"Authorization": f"Bearer {access['key']}"}
    ran = shell.folder / "ran"
    async with serving(ClaudeModel("sk-ant-test-0001")) as model:
        model.answer = lambda asked: (
            says("done") if "tool_result" in json.dumps(asked.body["messages"]) or not asked.tools
            else Answer(uses=(call("Bash", command=f"echo ran >> {ran}"),))
        )  # fmt: skip
        claude = ClaudeCode(shell.folder, model.port, httpx.URL(access["url"]).port or 80, access["key"])
        forged = ClaudeCode(shell.folder, model.port, claude.plane_port, "cortex_key_wrong")
        blocked = await forged.run("remove it")
        assert [denial["tool_name"] for denial in blocked["permission_denials"]] == ["Bash"]
        assert not ran.exists()

        deferred: dict[str, Any] = await claude.run("remove it")
        assert (deferred["stop_reason"], ran.exists()) == ("tool_deferred", False)
        again = await claude.run("--resume", deferred["session_id"])
        assert (again["stop_reason"], ran.exists()) == ("tool_deferred", False)
        async with httpx.AsyncClient(base_url=access["url"], headers=headers, trust_env=False) as api:
            await approve(api)
            done = await claude.run("--resume", deferred["session_id"])
            assert done["stop_reason"] == "end_turn"
            assert ran.read_text() == "ran\n"
            (asked,) = (await api.get("/v1/calls")).json()["items"]
            assert (asked["tool"], asked["status"]) == ("claude.bash", "completed")
            # In front of a person nothing is deferred: the hook is held until somebody decided.
            async with claude.terminal("remove it again"):
                await seen(api, "approvals", status="pending")
                assert ran.read_text() == "ran\n"
                await approve(api)
                await seen(api, "calls", count=2, status="completed")
            assert ran.read_text() == "ran\nran\n"


RULES = """
policies:
  - {name: listing, target: claude.bash, when: 'args.command == "echo listed"', effect: allow}
  - {name: deleting, target: claude.bash, when: 'args.command.startsWith("rm ")', effect: deny, reason: "nothing is deleted here"}
"""


def results_of(asked: Asked) -> dict[str, str]:
    """What the model got for each command, the last time."""
    blocks = [
        block
        for message in asked.body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    commands = {block["id"]: block["input"]["command"] for block in blocks if block["type"] == "tool_use"}
    return {
        commands[block["tool_use_id"]]: json.dumps(block["content"])
        for block in blocks
        if block["type"] == "tool_result"
    }


@pytest.mark.proves("D.950", "D.951", "D.952", "D.1053")
async def test_claude_code_obeys_each_answer_also_of_parallel_calls(plane: Plane, shell: Shell) -> None:
    await asyncio.to_thread(shell.run, "agent", "create", "claude-code", "--model", "none")
    (shell.folder / "rules.yaml").write_text(RULES)
    await asyncio.to_thread(shell.run, "policy", "apply", "rules.yaml", "--merge")
    await asyncio.to_thread(shell.run, "hook", "install", "claude", "--policy")
    settings = shell.folder / ".claude" / "settings.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"permissions": {"allow": ["Bash"]}}))
    access = json.loads((shell.folder / ".cortex" / "access.json").read_text())
    port = httpx.URL(access["url"]).port or 80
    ran = shell.folder / "ran"
    listing, deleting, first, second = "echo listed", f"rm {ran}", f"echo first >> {ran}", f"echo second >> {ran}"
    seen: dict[str, str] = {}

    def answer(asked: Asked) -> Answer:
        if not asked.tools:
            return says("a title")
        seen.update(results_of(asked))
        if not seen:
            return Answer(uses=tuple(call("Bash", command=command) for command in (listing, deleting, first, second)))
        return Answer(uses=(call("Bash", command=second),)) if "after this one" in seen[second] else says("done")

    async with serving(ClaudeModel("sk-ant-test-0001")) as model:
        model.answer = answer
        claude = ClaudeCode(shell.folder, model.port, port, access["key"])
        deferred = await claude.run("do it all")
        assert (deferred["stop_reason"], ran.exists()) == ("tool_deferred", False)
        assert deferred["deferred_tool_use"]["input"]["command"] == first
        headers = {"Authorization": f"Bearer {access['key']}"}
        async with httpx.AsyncClient(base_url=access["url"], headers=headers, trust_env=False) as api:
            await approve(api, first, arguments={"command": f"echo edited >> {ran}"})
            await approve(api, second)
            done = await claude.run("--resume", deferred["session_id"])
            assert done["stop_reason"] == "end_turn", done
            assert ran.read_text() == "edited\nsecond\n"
            assert "listed" in seen[listing]
            assert "nothing is deleted here" in seen[deleting]
            calls = (await api.get("/v1/calls")).json()["items"]
            assert sorted(call["status"] for call in calls) == ["completed", "completed", "completed", "rejected"]
        # The plane is down: what the hook cannot ask does not run, whatever Claude Code's own rules allow.
        seen.clear()
        down = ClaudeCode(shell.folder, model.port, 1, access["key"])
        settings.write_text(settings.read_text().replace(f":{port}/", ":1/"))
        blocked = await down.run("do it all")
        assert {denial["tool_name"] for denial in blocked["permission_denials"]} == {"Bash"}
        assert ran.read_text() == "edited\nsecond\n"
