"""Hooks of coding agents on the command line, against a plane that serves."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.calls.test_hooks import after, claude, gemini
from tests.cli.test_cli import Outcome, Shell, shell

__all__ = ["shell"]
READ = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})


class Events:
    def __init__(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shell, self._monkeypatch = shell, monkeypatch

    def run(self, event: Any, *words: str, dialect: str = "claude", expect: int = 0, **environment: Any) -> Outcome:
        content = event if isinstance(event, bytes) else json.dumps(event).encode()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return self.shell.run("hook", "--dialect", dialect, *words, expect=expect, **environment)

    def verdict(self, event: Any, *words: str, **environment: Any) -> str:
        output = json.loads(self.run(event, *words, **environment).stdout)["hookSpecificOutput"]
        return str(output["permissionDecision"])


@pytest.fixture
def events(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Events:
    return Events(shell, monkeypatch)


@pytest.mark.proves("D.954")
def test_a_starter_policy_lets_agents_read_and_asks_for_the_rest(events: Events) -> None:
    shell = events.shell
    assert "cortex agent create claude-code" in shell.run("hook", "install", "claude", "--policy").stdout
    for name, slug in (("claude", "claude-code"), ("codex", "codex"), ("gemini", "gemini")):
        shell.run("agent", "create", slug, "--model", "none")
        is_first = name != "claude"
        words = "applied the starter policy" if is_first else "the org has all of the starter policy"
        assert words in shell.run("hook", "install", name, "--policy").stdout
        assert f"{name}-reads" in shell.run("hook", "policy", name).stdout
    assert "codex-acts" in shell.run("policy", "show").stdout
    assert events.verdict(READ) == "allow"
    assert events.run(after(READ)).stdout == "{}\n"
    search = {"path": "/home/u/p/src", "pattern": "cortex", "-n": True}
    assert events.verdict(claude("Grep", "toolu_grep", tool_input=search)) == "allow"
    for tool in ("Bash", "Write", "Edit", "WebFetch", "WebSearch", "mcp__github__create_issue"):
        assert events.verdict(claude(tool, f"toolu_{tool}")) == "deny"
    assert events.verdict(claude(), CLAUDE_CODE_ENTRYPOINT="sdk-cli") == "defer"
    for n, path in enumerate(
        ("/home/u/p/.cortex/access.json", ".cortex", "/proc/self/environ", "/p/.claude/settings.local.json")
    ):
        assert events.verdict(claude("Read", f"toolu_key_{n}", tool_input={"file_path": path, "limit": 10})) == "deny"
    assert json.loads(events.run(gemini("t1"), dialect="gemini").stdout)["decision"] == "deny"
    read = gemini("t2", tool_name="read_file")
    assert json.loads(events.run(read, dialect="gemini").stdout) == {"decision": "allow"}
    codex = claude("apply_patch", session="c1")
    assert "deny" in events.run(codex, dialect="codex").stdout
    held = events.run(codex, "--wait", "0.2", dialect="codex").stdout
    assert "A person must approve it" in held


@pytest.mark.proves("D.952")
def test_a_hook_blocks_whatever_goes_wrong(events: Events) -> None:
    for event in (b"no json", b"[]", b"{}", b'{"a":"' + b"x" * 1_100_000 + b'"}'):
        assert "Cortex Plane: " in events.run(event, expect=2).stderr
    nowhere = {"CORTEX_URL": "http://127.0.0.1:9", "CORTEX_KEY": "cortex_key_1"}
    down = events.run(READ, expect=2, **nowhere)
    assert (down.stdout, "127.0.0.1:9" in down.stderr) == ("", True)
    assert events.run(READ, expect=2, CORTEX_KEY="cortex_key_wrong").stdout == ""
    assert "--dialect" in events.shell.run("hook", expect=2).stderr
    # What ran already is not hidden from the model.
    assert events.run(after(READ), expect=1, **nowhere).stdout == ""
    missing = json.loads(events.run(READ).stdout)["hookSpecificOutput"]
    assert (missing["permissionDecision"], "no agent" in missing["permissionDecisionReason"]) == ("deny", True)


@pytest.mark.proves("D.954")
def test_a_starter_policy_comes_after_the_policies_of_the_org(events: Events) -> None:
    shell = events.shell
    shell.run("agent", "create", "claude-code", "--model", "none")
    secret = {"file_path": "/p/.env"}
    (shell.folder / "own.yaml").write_text(
        "policies:\n"
        """  - {name: no-secrets, target: claude.read, when: 'args.file_path == "/p/.env"', effect: deny}\n"""
        "  - {name: claude-acts, target: claude.web_fetch, effect: deny}\n"
    )
    shell.run("policy", "apply", "own.yaml")
    for _ in range(2):
        output = shell.run("hook", "install", "claude", "--policy").stdout
        assert "left the policy claude-acts as it is" in output
        names = [row["row"]["name"] for row in json.loads(shell.run("policy", "show", "--json").stdout)["rows"]]
        assert (names[:2], "claude-reads" in names[2:]) == (["no-secrets", "claude-acts"], True)
    assert events.verdict(claude("Read", "toolu_1", tool_input=secret)) == "deny"
    assert events.verdict(claude("WebFetch", "toolu_2"), CLAUDE_CODE_ENTRYPOINT="sdk-cli") == "deny"
    assert events.verdict(READ | {"tool_use_id": "toolu_3"}) == "allow"


@pytest.mark.proves("D.950")
def test_a_shell_between_does_not_hide_the_process_of_the_coding_agent(events: Events) -> None:
    events.shell.run("agent", "create", "claude-code", "--model", "none")
    events.shell.run("hook", "install", "claude", "--policy")
    for id in ("toolu_1", "toolu_2"):
        words = f"{shlex.quote(sys.executable)} -m cortex_plane hook --dialect claude; exit $?"
        done = subprocess.run(
            ["sh", "-c", words], cwd=events.shell.folder, env=events.shell.environment, input=json.dumps(READ | {"tool_use_id": id}),
            capture_output=True, text=True,
        )  # fmt: skip
        assert '"permissionDecision":"allow"' in done.stdout, done.stderr
    # Here the parent is another process: that of these tests.
    assert events.verdict(READ | {"tool_use_id": "toolu_3"}) == "deny"


class AnyServer(BaseHTTPRequestHandler):
    """Not the plane: it answers everything with what Codex takes for no objection."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.proves("D.952")
def test_only_the_planes_answer_to_an_event_of_the_dialect_counts(events: Events) -> None:
    for dialect, event in (("claude", gemini("t1")), ("gemini", READ), ("codex", gemini("t1"))):
        answer = events.run(event, dialect=dialect, expect=2)
        assert (answer.stdout, "is no event of" in answer.stderr) == ("", True)
    with HTTPServer(("127.0.0.1", 0), AnyServer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        elsewhere = {"CORTEX_URL": f"http://127.0.0.1:{server.server_port}", "CORTEX_KEY": "cortex_key_1"}
        answer = events.run(READ, dialect="codex", expect=2, **elsewhere)
        server.shutdown()
        thread.join()
    assert (answer.stdout, "cannot be read" in answer.stderr) == ("", True)


@pytest.mark.proves("D.955")
def test_settings_get_the_hooks_beside_those_that_they_have(shell: Shell) -> None:
    path = shell.folder / ".claude" / "settings.json"
    path.parent.mkdir()
    own = {"matcher": "Bash", "hooks": [{"type": "command", "command": "./lint.sh"}]}
    guards = [
        {"type": "http", "url": "https://guard.example/v1/hooks/check"},
        {"type": "http", "url": "https://guard.example/v1/hooks/claude-code", "headers": {"Authorization": "Bearer $GUARD"}},
        {"type": "http", "url": "https://guard.example/v1/hooks/claude-code/x", "headers": {"Authorization": "Bearer $CORTEX_KEY"}},
        {"type": "command", "command": "cortex hook policy claude"},
    ]  # fmt: skip
    other = {"matcher": "*", "hooks": guards}
    before = {"model": "opus", "hooks": {"PreToolUse": [own, other], "Stop": [own]}}
    path.write_text(json.dumps(before))
    shell.run("hook", "install", "claude", "--agent", "coder")
    written = json.loads(path.read_text())
    assert written["model"] == "opus"
    assert written["hooks"]["Stop"] == [own]
    assert written["hooks"]["PreToolUse"][:2] == [own, other]
    (hook,) = written["hooks"]["PreToolUse"][2]["hooks"]
    assert hook["type"] == "http"
    assert hook["onFailure"] == "block"
    assert hook["url"].endswith("/v1/hooks/claude-code?agent=coder&wait=50")
    assert hook["headers"]["Authorization"] == "Bearer $CORTEX_KEY"
    assert [*written["hooks"]] == ["PreToolUse", "Stop", "PostToolUse", "PostToolUseFailure"]
    shell.run("hook", "install", "claude", "--agent", "coder")
    assert json.loads(path.read_text()) == written
    shell.run("hook", "install", "claude", "--command", "--wait", "600")
    (hook,) = json.loads(path.read_text())["hooks"]["PreToolUse"][2]["hooks"]
    assert hook["command"] == "cortex hook --dialect claude --wait 600"
    assert hook["timeout"] > 600
    assert "uninstall claude" in shell.run("hook", "install", "claude").stdout
    shell.run("hook", "uninstall", "claude")
    assert json.loads(path.read_text()) == before
    shell.run("hook", "install", "claude", "--wait", "600", expect=2)
    path.write_text("{broken")
    shell.run("hook", "install", "claude", expect=2)
    assert path.read_text() == "{broken"
    home = shell.folder / "home"
    shell.run("hook", "install", "gemini", "--user", HOME=str(home))
    gemini_hooks = json.loads((home / ".gemini" / "settings.json").read_text())["hooks"]
    assert [*gemini_hooks] == ["BeforeTool", "AfterTool"]
    assert gemini_hooks["BeforeTool"][0]["hooks"][0]["timeout"] == 80_000
    assert not Path(path.parent / "settings.json.new").exists()
