"""Connections of channels from the command line: what is served, what is refused, and what `cortex doctor` says of them."""

from __future__ import annotations

from tests.cli.test_cli import Shell, shell

__all__ = ["shell"]


def test_a_channel_that_is_not_served_is_refused_with_those_that_are(shell: Shell) -> None:
    refused = shell.run("connection", "create", "pager", "duty", expect=2)
    assert "This plane does not serve pager; it serves" in refused.stderr
    assert "webhook" in shell.run("connection", "channels").stdout
    assert "webhook" in [each["channel_type"] for each in shell.many("connection", "channels")]
    refused = shell.run("connection", "create", "web", "site", "--set", "color=red", expect=2)
    assert "has no `color`" in refused.stderr
    assert "names no value" in shell.run("connection", "create", "web", "site", "--set", "red", expect=2).stderr
    assert shell.many("connection", "list") == []


def test_doctor_looks_at_each_connection(shell: Shell) -> None:
    assert "none is connected" in " ".join(shell.run("doctor").stdout.split())
    site = shell.one("connection", "create", "web", "site")
    assert "1 connected, messages get through" in " ".join(shell.run("doctor").stdout.split())
    shell.run("connection", "disable", str(site["id"]))
    words = " ".join(shell.run("doctor", expect=1).stdout.split())  # however wide the columns are
    assert "web site is disabled" in words
    assert f"cortex connection enable {site['id']}" in words
    shown = shell.run("connection", "show", str(site["id"])).stdout
    assert "What is left to do" in shown


def test_a_claim_is_refused_under_a_wrong_id(shell: Shell) -> None:
    assert "in a private chat" in shell.run("user", "link").stdout
    assert shell.many("user", "claims") == []
    unknown = "01936f3a-0000-7000-8000-000000000000"
    shell.run("user", "confirm", unknown, expect=3)
    shell.run("user", "refuse", unknown, expect=3)
