"""Webhooks from the command line, against a plane that really serves and sends."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Channel
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.tenancy.model.identities import ConnectionDraft, MappingDraft
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from cortex_plane.worker.notifier import Notifier
from tests.cli.test_cli import Shell, shell
from tests.fixtures.approvals import Shipping, shown, waiting
from tests.fixtures.people import World
from tests.fixtures.sockets import served
from tests.fixtures.workers import call

DOCS = Path(__file__).parent.parent.parent / "docs" / "guides" / "webhooks.md"

__all__ = ["shell"]


@pytest.mark.proves("D.149")
def test_a_webhook_is_made_tried_rotated_mapped_and_moved_from_the_command_line(shell: Shell) -> None:
    url = "https://192.0.2.1/hook"  # nobody's address, and not a public one
    refused = shell.run("connection", "create", "hook", "--channel", "webhook", "--url", url, expect=2)
    assert "url_not_allowed" in refused.stderr
    assert "CORTEX_WEBHOOK_ALLOW" in refused.stderr
    for words in (
        ("hook", "--channel", "webhook"),
        ("hook", "--channel", "webhook", "--url", "https://u:p@hooks.invalid"),
        ("hook",),
        ("webhook", "hook", "--channel", "webhook"),
        ("web", "site", "--url", "https://hooks.invalid"),
    ):
        shell.run("connection", "create", *words, expect=2)
    told = shell.run("connection", "create", "hook", "--channel", "webhook", "--url", "https://hooks.invalid/a").stdout
    (secret,) = re.findall(r"whsec_[A-Za-z0-9+/=]+", told)
    assert told.index("shown once") < told.index(secret)
    (made,) = shell.many("connection", "list")
    id = str(made["id"])
    assert (made["url"], made["channel_type"]) == ("https://hooks.invalid/a", "webhook")
    assert "whsec_" not in shell.run("connection", "show", id).stdout
    rotated = shell.one("connection", "rotate-secret", id)
    assert rotated["secret"] != secret
    assert shell.one("connection", "set-url", id, "https://192.0.2.1.invalid/b")["url"] == "https://192.0.2.1.invalid/b"
    ada = str(shell.one("me")["member_id"])
    mapped = shell.one("connection", "map", id, "--member", ada, "--external-user", "ada@corp")
    assert (mapped["channel_user_id"], mapped["user_account_id"]) == ("ada@corp", ada)
    assert mapped["verified_at"]
    shell.run("connection", "map", id, "--member", id, "--external-user", "x", expect=3)
    shell.run("connection", "disable", id)
    shell.run("connection", "enable", id)


@asynccontextmanager
async def receiver_of_the_docs(**environment: str) -> AsyncIterator[None]:
    """The example as it is printed there, as a process of its own."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=os.environ | environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            while True:
                assert process.returncode is None
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", int(environment["PORT"]))
                except ConnectionRefusedError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    await writer.wait_closed()
                    break
        yield
    finally:
        process.terminate()
        await process.wait()


class Tidying(Shipping):
    def __init__(self) -> None:
        super().__init__()

        @self.app.tool(risk="low", timeout=5, on_uncertain="retry_with_key")
        async def tidy(room: str) -> str:
            """Tidy up."""
            return f"{room} is tidy"


async def _until_decided(world: World, notifier: Notifier, approval: Approval) -> Approval:
    async with asyncio.timeout(20):
        while (now := await shown(world, approval.id)).status is ApprovalStatus.PENDING:
            await notifier.turn()
            await asyncio.sleep(0.01)
    return now


@pytest.mark.proves("D.149")
async def test_the_receiver_of_the_docs_is_told_and_decides(strict: World) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    allowed = Allowed.parse(f"127.0.0.1:{port}")
    draft = ConnectionDraft(channel_type="webhook", name="docs", url=f"http://127.0.0.1:{port}/")
    hook = await connections.create_connection(
        strict.db, strict.admin.actor, draft, channels=ServedChannels(allowed=allowed)
    )
    member_id = strict.admin.actor.user_account_id
    assert isinstance(member_id, UUID)
    assert hook.secret is not None
    mapping = MappingDraft(member_id=member_id, external_user="ada@corp")
    await connections.map_member(strict.db, strict.admin.actor, hook.id, mapping)
    async with served(strict.db) as (plane, _, _):
        environment = {"PLANE": plane, "CONNECTION": str(hook.id), "SECRET": hook.secret, "PORT": str(port)}
        async with receiver_of_the_docs(**environment):
            _, asked = await waiting(strict, Tidying(), call("tidy", room="kitchen"), call("ship", version="1"))
            low, high = sorted(asked, key=lambda each: each.risk != "low")
            notifier = Notifier(strict.db, [WebhookChannel(allowed)], plane)
            decided = await _until_decided(strict, notifier, low)
            while await notifier.turn():
                pass
    assert (decided.status, decided.resolved_via) == (ApprovalStatus.APPROVED, Channel.WEBHOOK)
    assert (await shown(strict, high.id)).status is ApprovalStatus.PENDING, "that one is left to people"
