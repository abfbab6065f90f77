"""Policies on the command line, against a plane that serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.test_cli import Shell, shell

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
        "policy",
        "explain",
        "deployer",
        "deploy.web",
        "--args",
        '{"environment": "production"}',
        "--risk",
        "critical",
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
    wrong.write_text("policies:\n  - name: a\n    target: b\n    effect: requires_approval\n    quorum: 2\n")
    told = shell.run("policy", "apply", str(wrong), expect=2).stderr
    assert "line 5: `quorum` is not built yet" in told
    wrong.write_bytes(b"policies: []\n# \xff\n")
    assert "not UTF-8" in shell.run("policy", "apply", str(wrong), expect=2).stderr
    shell.run("policy", "apply", "missing.yaml", expect=2)
    wrong.write_text("policies: []\n")
    shell.run("policy", "apply", str(wrong), "--expect", "99", expect=4)
    shell.run("policy", "show", "--version", "99", expect=3)
    shell.run("policy", "explain", "nobody", "tool", expect=3)
    shell.run("policy", "explain", "nobody", "tool", "--args", "{", expect=2)
    shell.run("policy", "explain", "nobody", "tool", "--args", "[]", expect=2)
