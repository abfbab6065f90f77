"""Inviting, linking and unlinking from the command line, over the real API."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from cortex_plane.client.access import read_access
from tests.cli.test_cli import Shell, shell

__all__ = ["shell"]


@pytest.mark.proves("D.130", "D.135")
def test_people_are_invited_and_linked_from_the_command_line(shell: Shell) -> None:
    no_mail = shell.run("member", "invite", "--email", "bea@example.com", "--name", "Bea", expect=4)
    assert "CORTEX_SMTP_URL" in no_mail.stderr
    shell.run("connection", "create", "email", "post")
    invited = shell.one(
        "member", "invite", "--email", "Bea@Example.com", "--name", "Bea", "--role", "approver", "--clearance", "3",
        "--team", "main",
    )  # fmt: skip
    member, mapping = invited["member"], invited["mapping"]
    assert isinstance(member, dict)
    assert isinstance(mapping, dict)
    assert (member["display_name"], member["roles"], member["clearance"]) == ("Bea", ["approver"], 3)
    assert (mapping["channel_user_id"], mapping["verified_at"]) == ("bea@example.com", None)
    again = shell.run("member", "invite", "--resend", "--email", "bea@example.com")
    assert "sent again to bea@example.com" in again.stdout
    shell.run("member", "invite", "--resend", "--email", "bea@example.com", "--name", "Bea", expect=2)
    shell.run("member", "invite", "--email", "not an address", "--name", "Bea", expect=2)
    shell.run("member", "invite", "--email", "bea@example.com", "--name", "Bob", expect=4)
    (listed,) = shell.many("member", "channels", str(member["id"]))
    assert (listed["id"], listed["verified_at"]) == (mapping["id"], None)
    shell.run("member", "unlink", str(member["id"]), str(mapping["id"]))
    assert shell.many("member", "channels", str(member["id"])) == []

    site = shell.one("connection", "create", "web", "site")
    bridge = shell.one("key", "create", "bridge", "--service", "--role", "member")
    code = shell.run("user", "link").stdout.splitlines()
    assert re.fullmatch(r"[0-9A-Z]{5}-[0-9A-Z]{5}", code[0])
    assert "works once" in code[1]
    access = read_access(shell.folder / ".cortex")
    assert f"{access['url']}/access/channels" in " ".join(code).replace("  ", " ")
    redeemed = httpx.post(
        f"{access['url']}/v1/connections/{site['id']}/link",
        json={"code": code[0].lower(), "external_user_id": "admin-on-web"},
        headers={"Authorization": f"Bearer {bridge['secret']}"},
        trust_env=False,
    )
    assert redeemed.status_code == 201, redeemed.text
    (own,) = shell.many("user", "channels")
    assert (own["channel_type"], own["channel_user_id"]) == ("web", "admin-on-web")
    assert own["verified_at"] is not None
    assert "login-link" in shell.run("user", "link", "--email", "me@example.com").stdout
    assert json.loads(shell.run("user", "link", "--json").stdout)["code"]
    assert len(shell.many("user", "channels")) == 2
    shell.run("user", "unlink", str(own["id"]))
    shell.run("user", "unlink", str(own["id"]), expect=3)
    assert [each["channel_type"] for each in shell.many("user", "channels")] == ["email"]


@pytest.mark.proves("D.462")
def test_sessions_and_keys_are_seen_and_ended_from_the_command_line(shell: Shell) -> None:
    url = read_access(shell.folder / ".cortex")["url"]

    def log_in(**extra: str) -> str:
        path = str(shell.one("member", "login-link", **extra)["url_path"])
        with httpx.Client(base_url=url, trust_env=False) as browser:
            assert browser.post(path).status_code == 303
            return browser.cookies["cortex_session"]

    def is_in(cookie: str) -> bool:
        page = httpx.get(f"{url}/access", cookies={"cortex_session": cookie}, trust_env=False)
        return page.status_code == 200

    afar = shell.one("key", "create", "afar", "--worker", "--app", "acme")
    assert (afar["key"]["kind"], afar["key"]["permissions"]) == ("worker", ["app:acme"])  # type: ignore[index]
    made = shell.one("key", "create", "laptop")
    laptop: dict[str, Any] = {"CORTEX_KEY": str(made["secret"])}
    first, second, third = log_in(), log_in(), log_in(**laptop)
    sessions = shell.many("user", "sessions")
    assert [session["key_name"] for session in sessions] == ["laptop", "command line", "command line"]
    shell.run("user", "end-session", expect=2)
    shell.run("user", "end-session", str(sessions[1]["id"]))
    shell.run("user", "end-session", str(sessions[1]["id"]), expect=3)
    assert [is_in(cookie) for cookie in (first, second, third)] == [True, False, True]
    (listed, _) = shell.many("user", "keys")
    shell.run("user", "revoke-key", str(listed["id"]))
    shell.run("me", expect=5, **laptop)
    assert [is_in(cookie) for cookie in (first, third)] == [True, False]
    me = str(shell.one("me")["member_id"])
    assert len(shell.many("member", "sessions", me)) == 1
    assert "ended 1 session" in shell.run("member", "end-session", me, "--all").stdout
    assert not is_in(first)
