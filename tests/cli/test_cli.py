"""The command line against a plane that really serves: every command, its exit codes and its JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import httpx
import pytest

from cortex_plane.client.access import ACCESS_FILE, read_access, write_private
from cortex_plane.main.main import main
from tests.acceptance.planes import Plane


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
        if "CORTEX_KEY" in extra and "CORTEX_URL" not in self.environment:
            # A key of the environment is sent to no address of a folder.
            extra = {"CORTEX_URL": read_access(self.folder / ".cortex").get("url", "")} | extra
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
def owner(plane: Plane) -> Shell:
    """The shell of whoever started the plane, in its folder."""
    return Shell(plane.folder, plane.environment)


@pytest.fixture
def shell(plane: Plane, tmp_path: Path) -> Shell:
    """The shell of the admin of an org of this test's own, in a folder that knows the plane."""
    org = {"slug": f"org-{uuid4().hex[:12]}", "name": "An org of its own"}
    made = plane.api.post("/v1/orgs", json=org)
    assert made.status_code == 201, made.text
    home = tmp_path / ".cortex"
    home.mkdir()
    redeemed = plane.api.post("/v1/enrolments", json={"code": made.json()["enrolment"]["code"]})
    write_private(home / ACCESS_FILE, {"url": plane.access["url"], "key": redeemed.json()["secret"]})
    databases = ("DATABASE_URL", "DATABASE_ADMIN_URL")
    return Shell(tmp_path, {k: v for k, v in plane.environment.items() if k not in databases})


@pytest.mark.proves("D.20")
def test_a_person_types_their_way_through_every_noun(owner: Shell) -> None:
    assert owner.one("me")["platform"] is True
    assert owner.one("org", "show")["slug"] == "default"
    owner.run("org", "update", "--name", "Acme", "--no-guests-may-chat")
    owner.run("org", "update", "--guests-may-chat")
    before = {org["slug"] for org in owner.many("org", "list")}
    assert "default" in before
    assert owner.one("org", "create", "beta")["org"]
    assert {org["slug"] for org in owner.many("org", "list")} - before == {"beta"}
    assert owner.one("org", "show", CORTEX_ORG="beta")["slug"] == "beta"

    owner.run("team", "create", "ops", "--parent", "main")
    owner.run("team", "rename", "ops", "Operations")
    assert owner.one("team", "show", "ops")["name"] == "Operations"

    maria = owner.one("member", "add", "Maria", "--role", "operator", "--clearance", "3", "--team", "ops")
    assert owner.one("member", "update", str(maria["id"]), "--clearance", "4")["clearance"] == 4
    assert [m["display_name"] for m in owner.many("member", "list", "--role", "operator")] == ["Maria"]
    assert owner.one("member", "show", str(maria["id"]))["roles"] == ["operator"]

    link = owner.run("member", "login-link").stdout.splitlines()
    assert link[0].startswith("http://127.0.0.1:")
    assert "/login/cortex_login_" in link[0]
    assert "works once" in link[1]
    assert httpx.get(link[0], trust_env=False).status_code == 200
    mine = owner.one("member", "login-link")
    assert mine["member_id"] == owner.one("me")["member_id"]

    handed = owner.run("member", "enrol", str(maria["id"])).stdout.splitlines()
    assert "/enrol/cortex_enrol_" in handed[0]
    assert "works once" in handed[1]
    assert httpx.get(handed[0], trust_env=False).status_code == 200
    made = owner.one("enrol", handed[0], "--name", "laptop")
    owner.run("enrol", handed[0], expect=5)
    secret, key = str(made["secret"]), made["key"]
    assert isinstance(key, dict)
    assert owner.one("me", CORTEX_KEY=secret)["name"] == "Maria"
    assert owner.one("key", "show", key["id"])["last_used_at"]
    owner.run("key", "revoke", key["id"])
    owner.run("me", expect=5, CORTEX_KEY=secret)

    skills = owner.folder / "skills.json"
    skills.write_text('{"app": "nobody-has-it"}')  # so that its jobs stay where they are
    agent = owner.one(
        "agent", "create", "release", "--model", "scripted", "--team", "ops", "--channel", "web", "--channel", "api", "--skills",
        str(skills),
    )  # fmt: skip
    limits = owner.folder / "limits.json"
    limits.write_text('{"max_concurrent_jobs": 2}')
    changed = owner.one("agent", "update", "release", "--resource-limits", str(limits), "--revision", "1")
    assert (changed["config_version"], changed["revision"]) == (2, 2)
    owner.run("agent", "update", "release", "--role", "Late", "--revision", "1", expect=4)
    assert [v["version"] for v in owner.many("agent", "versions", "release")] == [2, 1]
    assert agent["id"] in [a["id"] for a in owner.many("agent", "list")]
    owner.run("team", "delete", "ops", expect=4)

    web = owner.one("connection", "create", "web", "site")
    service = str(owner.one("key", "create", "bridge", "--service", "--role", "member")["secret"])
    words = ["connection", "ingest", str(web["id"]), "--user", "u1", "--agent", "release", "Hi"]
    owner.run(*words, expect=5)  # a person may not speak for others
    delivery = owner.one(*words, CORTEX_KEY=service)
    assert delivery["created"] == ["account", "session", "job"]
    assert owner.many("member", "channels", str(delivery["user_account_id"]))[0]["channel_user_id"] == "u1"
    owner.run("connection", "disable", str(web["id"]))
    owner.run(*words, expect=4, CORTEX_KEY=service)
    owner.run("connection", "enable", str(web["id"]))
    owner.run("connection", "rename", str(web["id"]), "our site")

    session = str(delivery["session_id"])
    assert owner.one("session", "send", session, "More")["message_seq"] == 2
    assert [m["text"] for m in owner.many("session", "messages", session)] == ["Hi", "More"]
    owner.run("session", "rename", session, "A talk")
    assert owner.one("session", "terminate", session)["status"] == "TERMINATED"
    assert [s["title"] for s in owner.many("session", "list", "--status", "TERMINATED")] == ["A talk"]
    assert owner.one("session", "create", "release", "--title", "By hand")["kind"] == "programmatic"

    job = owner.one("job", "submit", "release", "--payload", '{"a": 1}', "--idempotency-key", "k1")
    assert owner.one("job", "submit", "release", "--payload", '{"a": 1}', "--idempotency-key", "k1") == job
    talk = str(job["session_id"])
    assert owner.one("session", "pause", talk, "--reason", "later")["changed"] is True
    assert "nothing changed" in owner.run("session", "pause", talk).stdout
    assert f"job {job['id']} is PENDING" in owner.run("session", "resume", talk).stdout
    assert owner.one("job", "pause", str(job["id"]))["changed"] is True
    assert "held by operator" in owner.run("job", "pause", str(job["id"])).stdout
    owner.one("job", "resume", str(job["id"]), "--note", "go", "--operator-input", "Use the blue one.")
    assert [(m["role"], m["text"]) for m in owner.many("session", "messages", talk)] == [
        ("system", "Use the blue one.")
    ]
    assert "failed_precondition" in owner.run("job", "resume", str(job["id"]), expect=4).stderr
    assert {s["id"]: s["agent_status"] for s in owner.many("session", "list")}[talk] == "ACTIVE"
    assert owner.many("job", "steps", str(job["id"])) == owner.many("job", "questions", str(job["id"])) == []
    owner.run("job", "checkpoint", str(job["id"]), expect=3)
    cancelled = owner.one("job", "cancel", str(job["id"]), "--reason", "no")["job"]
    assert isinstance(cancelled, dict)
    assert cancelled["status"] == "CANCELLED"
    assert owner.one("job", "resubmit", str(job["id"]))["resubmitted_from"] == job["id"]
    assert [c["new_status"] for c in owner.many("job", "history", str(job["id"]))] == ["PENDING", "CANCELLED"]
    assert len(owner.many("job", "list", "--agent", "release")) == 3

    assert "agent_created" in [entry["action"] for entry in owner.many("audit", "list")]
    assert "whole" in owner.run("audit", "verify").stdout
    assert "whole" in owner.run("audit", "verify", "--remote").stdout
    assert "current" in owner.run("db", "status").stdout
    assert "not ok" not in owner.run("doctor").stdout


def test_tables_show_whole_ids_and_harmless_text(shell: Shell) -> None:
    shell.run("agent", "create", "greeter", "--model", "scripted")
    job = shell.one("job", "submit", "greeter")
    assert str(job["id"]) in shell.run("job", "list").stdout
    shell.run("session", "send", str(job["session_id"]), "red \x1b[31mtext [bold]x[/bold]")
    shown = shell.run("session", "messages", str(job["session_id"])).stdout
    assert "\\x1b[31mtext [bold]x[/bold]" in shown
    assert "\x1b" not in shown


def test_mistakes_are_told_apart_by_exit_code(shell: Shell) -> None:
    unknown = "01936f3a-0000-7000-8000-000000000000"
    shell.run("job", "show", unknown, expect=3)
    shell.run("job", "submit", "nobody", expect=3)
    shell.run("agent", "create", "Bad_Slug", "--model", "m", expect=2)
    shell.run("job", "submit", "release", "--payload", "{not json", expect=2)
    shell.run("key", "create", "x", "--service", expect=2)
    shell.run("key", "create", "x", "--worker", expect=2)
    shell.run("no-such-command", expect=2)
    shell.run("me", expect=5, CORTEX_KEY="cortex_key_wrong")
    shell.run("me", expect=6, CORTEX_URL="http://127.0.0.1:9")
    words = [sys.executable, "-m", "cortex_plane", "job", "show", unknown]
    done = subprocess.run(words, cwd=shell.folder, env=shell.environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert "job_not_found" in done.stderr
    assert "Check the id" in done.stderr
