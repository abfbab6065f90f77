"""The command line against a plane that really serves: every command, its exit codes and its JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from cortex_plane.bootstrap.main import main
from tests.conftest import Urls

HELLO = Path(__file__).parent.parent.parent / "examples" / "hello.py"


@dataclass
class Outcome:
    stdout: str
    stderr: str


@dataclass
class Shell:
    folder: Path
    environment: dict[str, str]

    def run(self, *words: str, expect: int = 0, out: io.StringIO | None = None, **extra: Any) -> Outcome:
        """Through the real entry point, in this process: starting Python sixty times would be most of the test."""
        out, err = out or io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment | extra, clear=True),
            mock.patch.object(sys, "argv", ["cortex", *words]),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
        assert code == expect, f"{words}: {code}\n{out.getvalue()}\n{err.getvalue()}"
        return Outcome(out.getvalue(), err.getvalue())

    def json(self, *words: str, **extra: Any) -> object:
        return json.loads(self.run(*words, "--json", **extra).stdout)

    def one(self, *words: str, **extra: Any) -> dict[str, object]:
        found = self.json(*words, **extra)
        assert isinstance(found, dict)
        return found

    def many(self, *words: str, **extra: Any) -> list[dict[str, object]]:
        found = self.json(*words, **extra)
        assert isinstance(found, list)
        return found


@pytest.fixture
def shell(urls: Urls, tmp_path: Path) -> Iterator[Shell]:
    """`cortex up` on this test's own database, and a folder to type commands in."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    environment |= {
        "DATABASE_URL": urls.app,
        "DATABASE_ADMIN_URL": urls.admin,
        "CORTEX_PORT": "0",
        "COLUMNS": "200",
    }
    serving = subprocess.Popen(
        [sys.executable, "-m", "cortex_plane", "up"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert serving.stdout is not None
    said: list[str] = []
    for line in serving.stdout:
        said.append(line)
        if "Ctrl-C stops it" in line:
            break
    assert serving.poll() is None, "".join(said)
    rest = threading.Thread(target=serving.stdout.read)
    rest.start()
    try:
        yield Shell(tmp_path, environment)
    finally:
        serving.terminate()
        assert serving.wait(30) == 0
        rest.join()
        serving.stdout.close()


@pytest.mark.proves("D.20")
def test_a_person_types_their_way_through_every_noun(shell: Shell) -> None:
    assert shell.one("me")["platform"] is True
    assert shell.one("org", "show")["slug"] == "default"
    shell.run("org", "update", "--name", "Acme", "--no-guests-may-chat")
    shell.run("org", "update", "--guests-may-chat")
    assert shell.one("org", "create", "beta")["org"]
    assert {org["slug"] for org in shell.many("org", "list")} == {"default", "beta"}
    assert shell.one("org", "show", CORTEX_ORG="beta")["slug"] == "beta"

    shell.run("team", "create", "ops", "--parent", "main")
    shell.run("team", "rename", "ops", "Operations")
    assert shell.one("team", "show", "ops")["name"] == "Operations"

    maria = shell.one("member", "add", "Maria", "--role", "operator", "--clearance", "3", "--team", "ops")
    assert shell.one("member", "update", str(maria["id"]), "--clearance", "4")["clearance"] == 4
    assert [m["display_name"] for m in shell.many("member", "list", "--role", "operator")] == ["Maria"]
    assert shell.one("member", "show", str(maria["id"]))["roles"] == ["operator"]

    link = shell.run("member", "login-link", str(maria["id"])).stdout.splitlines()
    assert link[0].startswith("http://127.0.0.1:")
    assert "/login/cortex_login_" in link[0]
    assert "works once" in link[1]
    assert httpx.get(link[0], trust_env=False).status_code == 200
    mine = shell.one("member", "login-link")
    assert mine["member_id"] == shell.one("me")["member_id"]

    made = shell.one("key", "create", "laptop", "--member", str(maria["id"]))
    secret, key = str(made["secret"]), made["key"]
    assert isinstance(key, dict)
    assert shell.one("me", CORTEX_KEY=secret)["name"] == "Maria"
    assert shell.one("key", "show", key["id"])["last_used_at"]
    shell.run("key", "revoke", key["id"])
    shell.run("me", expect=5, CORTEX_KEY=secret)

    skills = shell.folder / "skills.json"
    skills.write_text('{"app": "nobody-has-it"}')  # so that its jobs stay where they are
    agent = shell.one(
        "agent", "create", "release", "--model", "scripted", "--team", "ops", "--channel", "web", "--skills",
        str(skills),
    )  # fmt: skip
    limits = shell.folder / "limits.json"
    limits.write_text('{"max_concurrent_jobs": 2}')
    changed = shell.one("agent", "update", "release", "--resource-limits", str(limits), "--revision", "1")
    assert (changed["config_version"], changed["revision"]) == (2, 2)
    shell.run("agent", "update", "release", "--role", "Late", "--revision", "1", expect=4)
    assert [v["version"] for v in shell.many("agent", "versions", "release")] == [2, 1]
    assert agent["id"] in [a["id"] for a in shell.many("agent", "list")]
    shell.run("team", "delete", "ops", expect=4)

    web = shell.one("connection", "create", "web", "site")
    service = str(shell.one("key", "create", "bridge", "--service", "--role", "member")["secret"])
    words = ["connection", "ingest", str(web["id"]), "--user", "u1", "--agent", "release", "Hi"]
    shell.run(*words, expect=5)  # a person may not speak for others
    delivery = shell.one(*words, CORTEX_KEY=service)
    assert delivery["created"] == ["account", "session", "job"]
    assert shell.many("member", "channels", str(delivery["user_account_id"]))[0]["channel_user_id"] == "u1"
    shell.run("connection", "disable", str(web["id"]))
    shell.run(*words, expect=4, CORTEX_KEY=service)
    shell.run("connection", "enable", str(web["id"]))
    shell.run("connection", "rename", str(web["id"]), "our site")

    session = str(delivery["session_id"])
    assert shell.one("session", "send", session, "More")["message_seq"] == 2
    assert [m["text"] for m in shell.many("session", "messages", session)] == ["Hi", "More"]
    shell.run("session", "rename", session, "A talk")
    assert shell.one("session", "terminate", session)["status"] == "TERMINATED"
    assert [s["title"] for s in shell.many("session", "list", "--status", "TERMINATED")] == ["A talk"]
    assert shell.one("session", "create", "release", "--title", "By hand")["kind"] == "programmatic"

    job = shell.one("job", "submit", "release", "--payload", '{"a": 1}', "--idempotency-key", "k1")
    assert shell.one("job", "submit", "release", "--payload", '{"a": 1}', "--idempotency-key", "k1") == job
    talk = str(job["session_id"])
    assert shell.one("session", "pause", talk, "--reason", "later")["changed"] is True
    assert "nothing changed" in shell.run("session", "pause", talk).stdout
    assert f"job {job['id']} is PENDING" in shell.run("session", "resume", talk).stdout
    assert shell.one("job", "pause", str(job["id"]))["changed"] is True
    assert "held by operator" in shell.run("job", "pause", str(job["id"])).stdout
    assert shell.one("job", "resume", str(job["id"]), "--note", "go")["changed"] is True
    assert shell.many("job", "steps", str(job["id"])) == shell.many("job", "questions", str(job["id"])) == []
    shell.run("job", "checkpoint", str(job["id"]), expect=3)
    cancelled = shell.one("job", "cancel", str(job["id"]), "--reason", "no")["job"]
    assert isinstance(cancelled, dict)
    assert cancelled["status"] == "CANCELLED"
    assert shell.one("job", "resubmit", str(job["id"]))["resubmitted_from"] == job["id"]
    assert [c["new_status"] for c in shell.many("job", "history", str(job["id"]))] == ["PENDING", "CANCELLED"]
    assert len(shell.many("job", "list", "--agent", "release")) == 3

    assert "agent_created" in [entry["action"] for entry in shell.many("audit", "list")]
    assert "whole" in shell.run("audit", "verify").stdout
    assert "whole" in shell.run("audit", "verify", "--remote").stdout
    assert "current" in shell.run("db", "status").stdout
    assert "not ok" not in shell.run("doctor").stdout


def test_tables_show_whole_ids_and_harmless_text(shell: Shell) -> None:
    shell.run("agent", "create", "greeter", "--model", "scripted")
    job = shell.one("job", "submit", "greeter")
    assert str(job["id"]) in shell.run("job", "list").stdout
    shell.run("session", "send", str(job["session_id"]), "red \x1b[31mtext [bold]x[/bold]")
    shown = shell.run("session", "messages", str(job["session_id"])).stdout
    assert "\\x1b[31mtext [bold]x[/bold]" in shown
    assert "\x1b" not in shown


def test_the_readme_example_prints_what_the_readme_says(shell: Shell, urls: Urls) -> None:
    done = subprocess.run(
        [sys.executable, str(HELLO)], cwd=shell.folder, env=shell.environment | {"DATABASE_URL": urls.app, "PYTHONPATH": str(HELLO.parent.parent)},
        input="y\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    readme = (HELLO.parent.parent / "README.md").read_text()
    # Whoever types gives the line end themselves.
    told = done.stdout.replace("[y/n] ", "[y/n] y\n")
    assert f"```text\n{told}```" in readme


def test_mistakes_are_told_apart_by_exit_code(shell: Shell) -> None:
    unknown = "01936f3a-0000-7000-8000-000000000000"
    shell.run("job", "show", unknown, expect=3)
    shell.run("job", "submit", "nobody", expect=3)
    shell.run("agent", "create", "Bad_Slug", "--model", "m", expect=2)
    shell.run("job", "submit", "release", "--payload", "{not json", expect=2)
    shell.run("key", "create", "x", expect=2)
    shell.run("no-such-command", expect=2)
    shell.run("me", expect=5, CORTEX_KEY="cortex_key_wrong")
    shell.run("me", expect=6, CORTEX_URL="http://127.0.0.1:9")
    words = [sys.executable, "-m", "cortex_plane", "job", "show", unknown]
    done = subprocess.run(words, cwd=shell.folder, env=shell.environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert "job_not_found" in done.stderr
    assert "Check the id" in done.stderr
