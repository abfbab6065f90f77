"""Keys to models and their usage from the command line."""

from __future__ import annotations

import io
import sys
from unittest import mock

import pytest

from tests.cli.test_cli import Shell, shell

__all__ = ["shell"]

OWN = "sk-ant-of-the-org-itself-4711"


@pytest.mark.proves("D.223")
def test_keys_and_usage_from_the_command_line(shell: Shell) -> None:
    with mock.patch.object(sys, "stdin", io.StringIO(f"{OWN}\n")):
        told = shell.run("model-key", "set", "anthropic").stdout
    assert "4711" in told
    assert OWN not in told
    (kept,) = shell.many("model-key", "list")
    assert (kept["provider"], kept["last_characters"]) == ("anthropic", "4711")
    assert shell.one("model-key", "show", "anthropic") == kept
    shell.run("model-key", "remove", "anthropic")
    assert shell.many("model-key", "list") == []
    assert "model_key_not_found" in shell.run("model-key", "remove", "anthropic", expect=3).stderr
    with mock.patch.object(sys, "stdin", io.StringIO("")):
        assert "no key on standard input" in shell.run("model-key", "set", "openai", expect=2).stderr
    with mock.patch.object(sys, "stdin", io.StringIO("too-short-secret")):
        shell.run("model-key", "set", "openai")
    with mock.patch.object(sys, "stdin", io.StringIO("a secret with spaces in it")):
        refused = shell.run("model-key", "set", "openai", expect=2)
    assert "a secret with spaces in it" not in refused.stderr + refused.stdout
    shell.run("model-key", "set", "acme", expect=2)
    agent = shell.one("agent", "create", "talker", "--model", "scripted")
    job = str(shell.one("job", "submit", str(agent["slug"]))["id"])
    shell.run("job", "watch", job)
    (row,) = shell.many("usage", "--by", "agent", "--agent", "talker")
    assert (row["agent"], row["calls"], row["cost_micros"]) == ("talker", 1, 0)
    table = shell.run("usage", "--by", "model").stdout
    assert "scripted" in table
    assert "$0.0000" in table
    assert shell.many("usage", "--since", "2100-01-01") == []
    shown = shell.run("job", "show", job).stdout
    assert "in 1 call; cost: $0.0000" in shown
