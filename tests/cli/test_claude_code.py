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


async def approve(api: httpx.AsyncClient) -> None:
    (request,) = (await api.get("/v1/approvals", params={"status": "pending"})).json()["items"]
    decision = {"decision": "approved", "version": request["version"], "input_hash": request["input_hash"]}
    decided = await api.post(f"/v1/approvals/{request['id']}/decide", json=decision)
    assert decided.status_code == 200, decided.text


@pytest.mark.proves("D.950", "D.952", "D.955")
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
