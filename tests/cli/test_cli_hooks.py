"""Hooks of coding agents on the command line, against a plane that serves."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from unittest import mock

import httpx
import pytest

from cortex_plane import Client
from cortex_plane.calls.model import MAX_HOOK_BYTES, Dialect
from cortex_plane.cli import hooks
from cortex_plane.client.access import ACCESS_FILE, read_access, write_private
from cortex_plane.kernel.errors import Unavailable
from tests.calls.test_hooks import after, claude, gemini
from tests.cli.test_cli import Outcome, Shell, shell

__all__ = ["shell"]
KEY_FILES = ("/home/u/p/.cortex/access.json", ".cortex", "/home/u/p/.Cortex/Access.json")
READ = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})


class Events:
    def __init__(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shell, self._monkeypatch = shell, monkeypatch

    def run(self, event: Any, *words: str, dialect: str = "claude", expect: int = 0, **environment: Any) -> Outcome:
        self.feed(event)
        plane = self.plane(**environment)
        return self.shell.run("hook", "--dialect", dialect, *plane, *words, expect=expect, **environment)

    def feed(self, event: Any) -> None:
        content = event if isinstance(event, bytes) else json.dumps(event).encode()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    def plane(self, **environment: Any) -> list[str]:
        """What `install` writes."""
        home = self.shell.folder / ".cortex"
        url = environment.get("CORTEX_URL") or read_access(home)["url"]
        return ["--url", url, *([] if "CORTEX_KEY" in environment else ["--home", str(home)])]

    def verdict(self, event: Any, *words: str, **environment: Any) -> str:
        output = json.loads(self.run(event, *words, **environment).stdout)["hookSpecificOutput"]
        return str(output["permissionDecision"])


@pytest.fixture
def events(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Events:
    return Events(shell, monkeypatch)


@pytest.mark.proves("D.954", "D.1098")
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
    for n, path in enumerate((*KEY_FILES, "/proc/self/environ", "/p/.claude/settings.local.json")):
        assert events.verdict(claude("Read", f"toolu_key_{n}", tool_input={"file_path": path, "limit": 10})) == "deny"
    for more in ({"glob": ".cortex/*"}, {"path": "/home/u/p/.cortex"}):
        grep = {"pattern": "key", "path": "/home/u/p", "output_mode": "content", **more}
        assert events.verdict(claude("Grep", f"toolu_{more}", tool_input=grep)) == "deny"
    assert events.verdict(claude("Glob", "toolu_glob", tool_input={"pattern": "**/access.json"})) == "deny"
    assert events.verdict(claude("Glob", "toolu_py", tool_input={"pattern": "**/*.py"})) == "allow"
    assert json.loads(events.run(gemini("t1"), dialect="gemini").stdout)["decision"] == "deny"
    read = gemini("t2", tool_name="read_file", tool_input={"file_path": "/home/u/p/a.py"})
    assert json.loads(events.run(read, dialect="gemini").stdout) == {"decision": "allow"}
    for n, path in enumerate(KEY_FILES):
        read = gemini(f"k{n}", tool_name="read_file", tool_input={"file_path": path})
        assert json.loads(events.run(read, dialect="gemini").stdout)["decision"] == "deny"
        opened = claude("read_file", f"k{n}", session="c1", tool_input={"file_path": path})
        assert "deny" in events.run(opened, dialect="codex").stdout
    opened = claude("read_file", "a", session="c1", tool_input={"file_path": "/home/u/p/a.py"})
    assert events.run(opened, dialect="codex").stdout == "{}\n"
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
        printed = shell.run("hook", "install", "claude", "--policy").stdout
        assert "left the policy claude-acts as it is" in printed
        rows: Any = shell.one("policy", "show")["rows"]
        names = [placed["row"]["name"] for placed in rows]
        assert (names[:2], "claude-reads" in names[2:]) == (["no-secrets", "claude-acts"], True)
    assert events.verdict(claude("Read", "toolu_1", tool_input=secret)) == "deny"
    assert events.verdict(claude("WebFetch", "toolu_2"), CLAUDE_CODE_ENTRYPOINT="sdk-cli") == "deny"
    assert events.verdict(READ | {"tool_use_id": "toolu_3"}) == "allow"


@pytest.mark.proves("D.950")
def test_a_shell_between_does_not_hide_the_process_of_the_coding_agent(events: Events) -> None:
    events.shell.run("agent", "create", "claude-code", "--model", "none")
    events.shell.run("hook", "install", "claude", "--policy")
    for id in ("toolu_1", "toolu_2"):
        words = (
            f"{shlex.quote(sys.executable)} -m cortex_plane hook --dialect claude {shlex.join(events.plane())}; exit $?"
        )
        done = subprocess.run(
            ["sh", "-c", words], cwd=events.shell.folder, env=events.shell.environment, input=json.dumps(READ | {"tool_use_id": id}),
            capture_output=True, text=True,
        )  # fmt: skip
        assert '"permissionDecision":"allow"' in done.stdout, done.stderr
    # Here the parent is another process: that of these tests.
    assert events.verdict(READ | {"tool_use_id": "toolu_3"}) == "deny"


class AnyServer(BaseHTTPRequestHandler):
    """Not the plane: it answers everything with what Codex takes for no objection."""

    keys: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        self.keys.append(self.headers["Authorization"])
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def any_server() -> Iterator[str]:
    AnyServer.keys.clear()
    with HTTPServer(("127.0.0.1", 0), AnyServer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.proves("D.1090")
def test_a_file_in_the_folder_of_the_coding_agent_moves_neither_hook_nor_key(events: Events, tmp_path: Path) -> None:
    shell, codex = events.shell, claude("apply_patch", session="c1")
    shell.run("agent", "create", "codex", "--model", "none")
    installed = shell.run("hook", "install", "codex", "--policy", "--wait", "0").stdout
    assert f"events go to {read_access(shell.folder / '.cortex')['url']}" in installed
    (hook,) = json.loads((shell.folder / ".codex" / "hooks.json").read_text())["hooks"]["PreToolUse"][0]["hooks"]
    words = shlex.split(hook["command"])[1:]
    repository = Shell(tmp_path / "repository", shell.environment)
    (repository.folder / ".cortex").mkdir(parents=True)

    def ask(*words: str, expect: int = 0, **environment: Any) -> Outcome:
        events.feed(codex)
        return repository.run(*words, expect=expect, **environment)

    with any_server() as url:
        placed: list[dict[str, object]] = [{"url": url}, {"url": url, "key": "cortex_key_1"}]
        for access in placed:
            write_private(repository.folder / ".cortex" / ACCESS_FILE, access)
            assert "deny" in ask(*words).stdout
            # Without what `install` writes nothing is asked, whatever the folder says.
            assert "cortex hook install" in ask("hook", "--dialect", "codex", expect=2).stderr
            assert (
                "cortex hook install"
                in ask("hook", "--dialect", "codex", expect=2, CORTEX_URL=url, CORTEX_KEY="k").stderr
            )
            # Nor does any other command send the key of the environment to an address of a folder.
            environment = {k: v for k, v in os.environ.items() if not k.startswith("CORTEX_")}
            with (
                mock.patch.dict(os.environ, environment | {"CORTEX_KEY": "cortex_key_real"}, clear=True),
                contextlib.chdir(repository.folder),
            ):
                for find in (Client, Client.here):
                    with pytest.raises(Unavailable, match="which plane it is for"):
                        find()
        # An agent that writes into the plane's own directory gets no other address asked: its key is for its own address alone.
        write_private(shell.folder / ".cortex" / ACCESS_FILE, {"url": url, "key": "cortex_key_1"})
        assert "no key" in ask(*words, expect=2).stderr
    assert AnyServer.keys == []


@pytest.mark.proves("D.1095")
def test_a_large_result_is_shortened_and_recorded(events: Events) -> None:
    events.shell.run("agent", "create", "claude-code", "--model", "none")
    events.shell.run("hook", "install", "claude", "--policy")
    assert events.verdict(READ) == "allow"
    huge = {"file": {"base64": "x" * (MAX_HOOK_BYTES + 1)}}
    assert events.run(after(READ, tool_response=huge)).stdout == "{}\n"
    (call,) = events.shell.many("call", "list")
    shown = events.shell.one("call", "show", str(call["id"]))
    assert (shown["status"], "bytes" in str(shown["result"])) == ("completed", True)
    assert events.verdict(READ | {"tool_use_id": "toolu_2", "prompt_id": "next"}) == "allow"


@pytest.mark.proves("D.1096")
async def test_the_reason_of_a_call_that_waits_does_not_end_the_wait() -> None:
    waits = {"permissionDecision": "deny", "permissionDecisionReason": "A person must approve deferred payments."}
    verdicts = [waits, waits, {"permissionDecision": "allow"}]

    def answer(_: httpx.Request) -> httpx.Response:
        verdict = verdicts.pop(0)
        headers = {"Cortex-Hook": "claude-code"} | ({"Cortex-Pending": "x"} if verdict is waits else {})
        return httpx.Response(
            200, json={"hookSpecificOutput": {"hookEventName": "PreToolUse", **verdict}}, headers=headers
        )

    async with Client("http://plane", "cortex_key_1", transport=httpx.MockTransport(answer)) as plane:
        decision = await hooks._ask(plane, Dialect.CLAUDE, b"{}", None, 30)
    assert (decision["hookSpecificOutput"]["permissionDecision"], verdicts) == ("allow", [])


@pytest.mark.proves("D.1097")
def test_settings_are_not_written_through_links_of_a_repository(shell: Shell, tmp_path: Path) -> None:
    victim = tmp_path / "victim.json"
    victim.write_text("{}")
    path = shell.folder / "project" / ".claude" / "settings.json"
    path.parent.mkdir(parents=True)
    project = ("--project", str(shell.folder / "project"))
    path.with_name("settings.json.new").symlink_to(victim)
    shell.run("hook", "install", "claude", *project)
    assert (victim.read_text(), path.is_symlink(), path.stat().st_mode & 0o777) == ("{}", False, 0o644)
    path.unlink()
    path.symlink_to(victim)
    for word in ("install", "uninstall"):
        assert "link" in shell.run("hook", word, "claude", *project, expect=2).stderr
    assert victim.read_text() == "{}"
    # A link in a home directory is its owner's own.
    home = shell.folder / "home" / ".claude"
    home.mkdir(parents=True)
    (home / "settings.json").symlink_to(victim)
    shell.run("hook", "install", "claude", "--user", HOME=str(home.parent))
    assert "PreToolUse" in victim.read_text()


@pytest.mark.proves("D.952")
def test_only_the_planes_answer_to_an_event_of_the_dialect_counts(events: Events) -> None:
    for dialect, event in (("claude", gemini("t1")), ("gemini", READ), ("codex", gemini("t1"))):
        refused = events.run(event, dialect=dialect, expect=2)
        assert (refused.stdout, "is no event of" in refused.stderr) == ("", True)
    with any_server() as url:
        elsewhere = {"CORTEX_URL": url, "CORTEX_KEY": "cortex_key_1"}
        answer = events.run(READ, dialect="codex", expect=2, **elsewhere)
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
    home = shell.folder / ".cortex"
    place = f"--url {read_access(home)['url']} --home {shlex.quote(str(home))}"
    assert hook["command"] == f"cortex hook --dialect claude --wait 600 {place}"
    assert hook["timeout"] > 600
    assert "uninstall claude" in shell.run("hook", "install", "claude").stdout
    shell.run("hook", "uninstall", "claude")
    assert json.loads(path.read_text()) == before
    shell.run("hook", "install", "claude", "--wait", "600", expect=2)
    path.write_text("{broken")
    shell.run("hook", "install", "claude", expect=2)
    assert path.read_text() == "{broken"
    user = shell.folder / "home"
    shell.run("hook", "install", "gemini", "--user", HOME=str(user))
    gemini_hooks = json.loads((user / ".gemini" / "settings.json").read_text())["hooks"]
    assert [*gemini_hooks] == ["BeforeTool", "AfterTool"]
    assert gemini_hooks["BeforeTool"][0]["hooks"][0]["timeout"] == 80_000
    assert not Path(path.parent / "settings.json.new").exists()
