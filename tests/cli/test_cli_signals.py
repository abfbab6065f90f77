"""Signals from the command line."""

from __future__ import annotations

import io
import sys
from unittest import mock

import pytest

from tests.cli.test_cli import Shell, shell

__all__ = ["shell"]


@pytest.mark.proves("D.257")
def test_signals_from_the_command_line(shell: Shell) -> None:
    told = shell.run("signal", "send", "payment.received", "order-1", "--payload", '{"amount": 120}').stdout
    assert "sent payment.received order-1: 0 jobs waited for it" in told
    again = shell.one("signal", "send", "payment.received", "order-1", "--payload", '{"amount": 120.0}')
    assert (again["changed"], again["woken"]) == (False, 0)
    with mock.patch.object(sys, "stdin", io.StringIO('["from", "stdin"]')):
        piped = shell.one("signal", "send", "payment.received", "order-2", "--payload", "-")
    assert piped["changed"] is True
    (signal,) = shell.many("signal", "list", "--name", "payment.received", "--key", "order-2")
    assert signal["payload"] == ["from", "stdin"]
    assert len(shell.many("signal", "list")) == 2
    refused = shell.run("signal", "send", "payment.received", "order-1", "--payload", "1", expect=4)
    assert "signal_taken" in refused.stderr
    assert "another key" in refused.stderr
    assert "not JSON" in shell.run("signal", "send", "a", "b", "--payload", "{", expect=2).stderr
    shell.run("signal", "send", "", "b", expect=2)
    agent = shell.one("agent", "create", "waiter", "--model", "scripted")
    job = shell.one("job", "submit", str(agent["slug"]))
    assert shell.many("job", "waits", str(job["id"])) == []
