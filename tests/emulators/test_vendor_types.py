"""What the emulators of Telegram and Slack take and send is of the types that the vendors' communities publish for TypeScript.

The types are no part of the repository: `make types` fetches them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.slack.channel import SlackChannel
from cortex_plane.channels.telegram.channel import TelegramChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.emulators.slack import BOT_TOKEN, BOT_USER, SIGNING_SECRET, TEAM, SlackEmulator
from cortex_plane.emulators.telegram import BOT_ID, TOKEN, TelegramEmulator
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.model.channels import InboundAnswer
from cortex_plane.notify.model.notifications import Occasion, Target, Undeliverable
from tests.fixtures.vendor_messages import DENY, NOW, card_with_buttons, message, reply

MODULES = str(Path(__file__).parents[2] / ".venv" / "types" / "node_modules")
pytestmark = pytest.mark.skipif(
    not Path(MODULES, "typescript").exists(),
    reason="the vendors' types are not here: `make types` fetches them with npm",
)

UNDEFINED = "@undefined"
MARKDOWN = "# A\n\n**b** *c* ~~d~~ `e` [f](https://example.com)\n\n- g\n  1. h\n\n> i\n\n```\nj\n```"
TELEGRAM = 'import type { ApiError, ApiMethods, Message, Update, UserFromGetMe, WebhookInfo } from "@grammyjs/types";\n'
SLACK = """\
import type { BlockAction, ButtonAction, EnvelopedEvent, SlashCommand, ViewSubmitAction } from "@slack/bolt";
import type { AppMentionEvent, AppUninstalledEvent, GenericMessageEvent } from "@slack/types";
import type * as web from "@slack/web-api";
"""
SLACK_TYPES = {
    "EnvelopedEvent": "EnvelopedEvent<Omit<GenericMessageEvent, 'subtype'> | AppMentionEvent | AppUninstalledEvent>",
    "SlashCommand": "SlashCommand",
    "block_actions": "BlockAction<ButtonAction>",
    "view_submission": "ViewSubmitAction",
}


def check_types(folder: Path, head: str, values: Sequence[tuple[str, Any]]) -> None:
    """Each value as a literal of its type: a field that the type does not have is an error, too."""
    literals = [(kind, json.dumps(value).replace(f'"{UNDEFINED}"', "undefined")) for kind, value in values]
    lines = [f"const value{n}: {kind} = {literal};" for n, (kind, literal) in enumerate(literals)]
    (folder / "values.ts").write_text(head + "\n".join([*lines, "export {};"]))
    (folder / "node_modules").symlink_to(MODULES)
    options = [
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--types",
        "node",
    ]
    (folder / "package.json").write_text('{"type": "module"}')
    compiler = Path(MODULES) / ".bin" / "tsc"
    done = subprocess.run([compiler, *options, "values.ts"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _with_undefined(value: Any, inside: str = "") -> Any:
    """A message that is replied to shows no message to which it replies itself: its type wants the field to be undefined."""
    if not isinstance(value, dict):
        return value
    inner = {name: _with_undefined(part, name) for name, part in value.items()}
    return {**inner, "reply_to_message": UNDEFINED} if inside == "reply_to_message" else inner


def _target(config: Mapping[str, str], secrets: Mapping[str, str], address: str) -> Target:
    return Target(
        connection_id=UUID(int=3), connection="c", config=config, secrets=secrets, address=address, member="Bea"
    )


async def test_telegram(tmp_path: Path) -> None:
    async with TelegramEmulator().serve() as vendor:
        vendor.join(7, "Bea")
        vendor.add_group(-1001, "Room")
        channel = TelegramChannel(VendorClient(Allowed.parse("127.0.0.1")))
        config = {"api_url": vendor.url, "bot_id": str(BOT_ID), "bot_username": vendor.username}
        target = _target(config, {"bot_token": TOKEN}, "7")
        await channel.identify(target, "https://plane.example/in")
        vendor.webhook["url"] = ""  # nobody takes updates there
        sent = await channel.send(message(target, card_with_buttons()))
        await channel.send(message(target, card_with_buttons(occasion=Occasion.REMINDED), sent))
        vendor.press(7, int(str(sent.message_ref).rpartition(":")[2]), "Deny")
        item = channel.read({"update": vendor.traffic[-1][1], **config})
        assert item is not None
        await channel.answer(target, item, InboundAnswer(text="Why?", ask_for=DENY.data))
        vendor.reply(7, vendor.chat(7)[-1].id, "too early")
        await channel.send(message(target, card_with_buttons(status=ApprovalStatus.DENIED, resolved_at=NOW), sent))
        vendor.write(7, "/new@cortex_demo_bot", chat=-1001)
        await channel.send(message(target, reply(MARKDOWN, is_final=False)))
        vendor.block(7)
        with pytest.raises(Undeliverable):
            await channel.send(message(target, reply("x")))
        await channel.close()
    values = []
    for kind, value in vendor.traffic:
        method, _, is_request = kind.partition(" ")
        values.append((f'NonNullable<Parameters<ApiMethods<never>["{method}"]>[0]>' if is_request else kind, value))
    values = [(kind, _with_undefined(value)) for kind, value in values if value]
    assert {"Update", "Message", "UserFromGetMe", "ApiError"} <= {kind for kind, _ in values}
    check_types(tmp_path, TELEGRAM, values)


async def test_slack(tmp_path: Path) -> None:
    async with SlackEmulator(first_retry=0).serve() as vendor:
        vendor.join("U0BEA", "Bea")
        vendor.add_channel("C0ROOM", "room")
        channel = SlackChannel(VendorClient(Allowed.parse("127.0.0.1")))
        config = {"api_url": vendor.api_url, "team_id": TEAM, "bot_user_id": BOT_USER}
        target = _target(config, {"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET}, "U0BEA")
        await channel.identify(target, "https://plane.example/in")
        sent = await channel.send(message(target, card_with_buttons(question="Really?")))
        await channel.send(message(target, card_with_buttons(occasion=Occasion.REMINDED), sent))
        vendor.press("U0BEA", vendor.chat("U0BEA")[0], "Deny")
        press = channel.read(orjson.loads(orjson.dumps(vendor.traffic[-1][1])))
        await channel.answer(target, press, InboundAnswer(text="Why?", ask_for=DENY.data))  # type: ignore[arg-type]
        vendor.submit(vendor.views[0], {"words": "too early"})
        vendor.write("U0BEA", "hello")
        vendor.mention("U0BEA", "C0ROOM", "hello")
        mention = channel.read(vendor.traffic[-1][1])
        await channel.answer(target, mention, InboundAnswer(text="Hello"))  # type: ignore[arg-type]
        vendor.command("U0BEA", "status")
        await channel.send(message(target, reply(MARKDOWN)))
        vendor.uninstall()
        await channel.close()
    values = []
    for kind, value in vendor.traffic:
        method, _, side = kind.partition(" ")
        name = "".join(word[0].upper() + word[1:] for word in method.split("."))
        if side == "request" and value:
            values.append((f"web.{name}Arguments", value))
        elif side == "result" and method in ("auth.test", "conversations.open"):
            # Those of messages are enumerations that Slack made of examples: no text is of their types.
            values.append((f"web.{name}Response", value))
        elif not side:
            values.append((SLACK_TYPES[kind], value))
    assert set(SLACK_TYPES.values()) <= {kind for kind, _ in values}
    check_types(tmp_path, SLACK, values)
