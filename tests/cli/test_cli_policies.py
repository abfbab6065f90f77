"""Policies on the command line, against a plane that serves."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import Shell, shell

__all__ = ["shell"]
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "policies.yaml"


@pytest.mark.proves("D.54", "D.56")
def test_a_steward_applies_reads_and_asks(shell: Shell) -> None:
    shell.run("agent", "create", "deployer", "--model", "scripted")
    dry = shell.run("policy", "apply", str(EXAMPLE), "--dry-run").stdout
    assert "+ org: production-deploys" in dry
    assert "it would become version" in dry
    before = shell.one("policy", "show")["version"]
    applied = shell.run("policy", "apply", str(EXAMPLE), "--note", "first").stdout
    assert "holds now" in applied
    now = shell.one("policy", "show")
    assert isinstance(before, int)
    assert now["version"] == before + 1
    assert "nothing changes" in shell.run("policy", "apply", str(EXAMPLE)).stdout
    shown = shell.run("policy", "show").stdout
    assert "production-deploys" in shown
    assert "critical-needs-approval" in shown
    assert shell.run("policy", "show", "--source").stdout == EXAMPLE.read_text()
    assert shell.many("policy", "list")[0]["note"] == "first"
    told = shell.run(
        "policy", "explain", "deployer", "deploy.web", "--args", '{"environment": "production"}', "--risk", "critical"
    ).stdout
    assert "decided by org:production-deploys@" in told
    assert "verdict: requires_approval" in told
    assert "limit platform:critical-needs-approval" in told
    assert "published by no worker" in told
    free = shell.run("policy", "explain", "deployer", "weather", "--read-only").stdout
    assert "verdict: allow" in free
    asked = shell.one("policy", "explain", "deployer", "deploy.web", "--args", '{"environment": "staging"}')
    explanation = asked["explanation"]
    assert isinstance(explanation, dict)
    assert explanation["decision"]["verdict"] == "allow"
    changed = shell.folder / "changed.yaml"
    changed.write_text(EXAMPLE.read_text().replace("timeout: 4h", "timeout: 3h"))
    told = shell.run("policy", "apply", str(changed), "--dry-run").stdout
    assert "~ org: production-deploys" in told
    assert "timeout_seconds: 14400 → 10800" in told


def test_what_is_wrong_is_told_with_its_line_and_an_exit_code(shell: Shell) -> None:
    wrong = shell.folder / "wrong.yaml"
    wrong.write_text("policies:\n  - name: a\n    target: b\n    effect: requires_approval\n    quorum: 0\n")
    for command in ("apply", "simulate"):
        told = shell.run("policy", command, str(wrong), expect=2).stderr
        assert "line 5: `quorum` must be a whole number from 1 to 10." in told
    wrong.write_bytes(b"policies: []\n# \xff\n")
    assert "not UTF-8" in shell.run("policy", "apply", str(wrong), expect=2).stderr
    shell.run("policy", "apply", "missing.yaml", expect=2)
    wrong.write_text("policies: []\n")
    shell.run("policy", "apply", str(wrong), "--expect", "99", expect=4)
    shell.run("policy", "show", "--version", "99", expect=3)
    shell.run("policy", "explain", "nobody", "tool", expect=3)
    shell.run("policy", "explain", "nobody", "tool", "--args", "{", expect=2)
    shell.run("policy", "explain", "nobody", "tool", "--args", "[]", expect=2)
    shell.run("policy", "simulate", "missing.yaml", expect=2)
    for since in ("yesterday", "0s", "400d", "7w"):
        told = shell.run("policy", "simulate", str(wrong), "--since", since, expect=2).stderr
        assert "--since" in told or "within_seconds" in told
    shell.run("policy", "simulate", str(wrong), "--until", "7d", expect=2)
    shell.run("policy", "simulate", str(wrong), "--since", "2999-01-01", expect=2)
    shell.run("policy", "simulate", str(wrong), "--limit", "0", expect=2)


@pytest.mark.proves("D.110")
def test_new_terms_are_shown_and_explained(shell: Shell) -> None:
    shell.run("agent", "create", "deployer", "--model", "scripted")
    shell.run("member", "add", "Bob", "--role", "approver")
    file = shell.folder / "terms.yaml"
    file.write_text(
        "policies:\n"
        "  - name: deploys\n    target: deploy\n    effect: requires_approval\n    template: full_pipeline\n"
        "    approvers: {roles: [approver, admin]}\n    quorum: {votes: 2, roles: {admin: 1}}\n"
        "    escalate_before: 1h\n    escalate_to: [{roles: [operator]}]\n    channels: [email]\n    standing: true\n"
    )
    applied = shell.run("policy", "apply", str(file)).stdout
    assert "warning: line 2: `escalate_before` does nothing here" in applied
    shown = shell.run("policy", "show").stdout
    assert "quorum 2 votes, of them 1 admin, escalates 1h before, escalates to role operator" in shown
    assert "over email, standing approvals" in shown
    told = shell.run("policy", "explain", "deployer", "deploy", "--risk", "low").stdout
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in told.splitlines()}
    assert lines["quorum"] == "quorum 2 votes, of them 1 admin row deploys"
    assert lines["escalation"] == "escalation 1h before row deploys"
    assert lines["escalations"] == "escalations role operator row deploys"
    assert lines["channels"] == "channels email row deploys"
    assert lines["standing"] == "standing yes row deploys"
    # The platform's row is final: its approvers decide, and there is nobody above them.
    critical = shell.run("policy", "explain", "deployer", "deploy", "--risk", "critical").stdout
    assert "standing yes → no" in critical
    assert "escalations role operator → nobody" in critical


@pytest.mark.proves("D.115")
def test_a_steward_simulates_before_applying(shell: Shell) -> None:
    free = shell.run("policy", "simulate", str(EXAMPLE)).stdout
    assert "0 calls from " in free
    assert "0 would change: 0 stricter, 0 looser, 0 otherwise; 0 unchanged" in free
    found = shell.one("policy", "simulate", str(EXAMPLE), "--since", "2026-01-01T00:00Z", "--limit", "5")
    assert found["since"] == "2026-01-01T00:00:00Z"
    before = shell.one("policy", "show")["version"]
    assert found["version"] == f"{before}.1"


ONE = "policies:\n  - {name: one, target: a, effect: deny}\n"
TWO = "policies:\n  - {name: two, target: b, effect: deny}\n"


@pytest.mark.proves("S5.264")
def test_removing_policies_is_asked_about_with_their_names(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = shell.folder / "one.yaml", shell.folder / "two.yaml"
    one.write_text(ONE)
    two.write_text(TWO)
    before = shell.one("policy", "show")["version"]
    assert isinstance(before, int)
    shell.run("policy", "apply", str(one), "--yes")
    # A script cannot be asked: it says what it wants.
    for more in ([], ["--json"]):
        refused = shell.run("policy", "apply", str(two), *more, expect=2).stderr
        assert "The file does not have 1 policy that hold" in refused.replace("holds", "hold")
        assert "- org: one" in refused
        assert "--merge to keep them, or --yes to remove them" in refused
    assert shell.one("policy", "show")["version"] == before + 1
    merged = shell.run("policy", "apply", str(two), "--merge").stdout
    assert "applied: 1 added, 0 removed, 1 changed" in merged
    assert [row["row"]["name"] for row in shell.one("policy", "show")["rows"]] == ["two", "one"]  # type: ignore[attr-defined]
    # Nothing is removed: nobody is asked.
    assert "nothing changes" in shell.run("policy", "apply", str(two), "--merge").stdout
    both = shell.folder / "both.yaml"
    both.write_text(ONE + TWO.removeprefix("policies:\n"))
    assert "2 changed" in shell.run("policy", "apply", str(both)).stdout
    for answer, version in (("n", before + 3), ("y", before + 4)):
        typed = Terminal(f"{answer}\n")
        monkeypatch.setattr(sys, "stdin", typed)
        told = shell.run("policy", "apply", str(two), expect=0 if answer == "y" else 1)
        assert "- org: one" in told.stderr
        assert "Remove them?" in told.stderr
        assert shell.one("policy", "show")["version"] == version


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.proves("S5.265")
def test_an_agent_is_created_with_its_atlases(shell: Shell) -> None:
    shell.run("atlas", "publish", str(EXAMPLE.parent / "atlases" / "acme-support.yaml"))
    made = shell.one("agent", "create", "desk", "--model", "scripted", "--atlas", "com.acme.support")
    assert made["skill_config"] == {"atlases": ["com.acme.support"]}
    refused = shell.run("agent", "create", "other", "--model", "scripted", "--atlas", "com.acme.none", expect=4)
    assert "com.acme.none" in refused.stderr
