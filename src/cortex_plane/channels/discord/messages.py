"""Messages that people write on Discord: in direct chats with the bot, and where they mention it in channels and threads of a server.

Discord hands over the words of exactly these without the privileged intent for the content of messages.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from cortex_plane.channels.card_text import one_line
from cortex_plane.channels.discord.interactions import FREE_TEXT, person, read_sender
from cortex_plane.notify.model.channels import Chat, ChatMessage, InboundItem

MESSAGE = "message"
_KINDS: Final = frozenset({0, 19})
"""What somebody wrote, and a reply. Others tell of members, pins and threads."""
MAX_NAME = 200
_USER = re.compile(r"<@!?([0-9]{1,20})>")
_EMOJI = re.compile(r"<a?(:[A-Za-z0-9_]{1,64}:)[0-9]{1,20}>")
_COMMAND = re.compile(rf"/cortex(?: +(?:{FREE_TEXT} +(?=\S))?|$)", re.IGNORECASE)
"""What a client sends as text where it does not offer the command."""


def message_item(message: Mapping[str, Any], bot_id: str) -> InboundItem | None:
    """What is stored of a message; None for what is not meant for the bot. Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for what
    is no message of Discord."""
    author, mentioned = message["author"], message.get("mentions") or []
    is_direct = "guild_id" not in message
    if author.get("bot") or "webhook_id" in message or message.get("type", 0) not in _KINDS or author["id"] == bot_id:
        return None
    if not is_direct and bot_id not in [user["id"] for user in mentioned]:
        return None
    reference = message.get("message_reference") or {}
    is_reply = message.get("type") == 19 and reference.get("channel_id") == message["channel_id"]
    names = {str(user["id"]): str(user.get("global_name") or user.get("username") or user["id"]) for user in mentioned}
    id = str(message["id"])[:MAX_NAME]
    essence = {
        "type": MESSAGE,
        "id": id,
        "channel_id": str(message["channel_id"]),
        "is_direct": is_direct,
        "user": person(author),
        "text": plain(str(message.get("content") or ""), bot_id, names),
        "reply_to": str(reference["message_id"]) if is_reply and reference.get("message_id") else None,
        "attachments": [one_line(str(file.get("filename", "file")), MAX_NAME) for file in message.get("attachments") or ()],
    }  # fmt: skip
    return InboundItem(event_id=id, payload=essence)


def plain(text: str, bot_id: str, names: Mapping[str, str]) -> str:
    """The words as their person saw them, without the mention of the bot."""
    text = _USER.sub(lambda match: "" if match[1] == bot_id else f"@{names.get(match[1], match[1])}", text)
    text = _EMOJI.sub(r"\1", text).strip()
    command = _COMMAND.match(text)
    if command is None:
        return text
    rest = text[command.end() :]
    return rest if FREE_TEXT in command[0].lower() else f"/{rest or 'help'}"


def read_message(payload: Mapping[str, Any]) -> ChatMessage:
    channel, id, is_direct = str(payload["channel_id"]), str(payload["id"]), bool(payload["is_direct"])
    reply_to = payload["reply_to"]
    return ChatMessage(
        sender=read_sender(payload["user"]),
        # In a channel the answer stands under what it answers: others write in between.
        chat=Chat(id=channel, is_private=is_direct, thread=None if is_direct else id),
        answer_to={"channel_id": channel, "message_id": id},
        text=str(payload["text"]),
        reply_to=None if reply_to is None else f"{channel}:{reply_to}",
        attachments=tuple(payload["attachments"]),
    )


def under(message_id: str) -> dict[str, Any]:
    """A part of a message: it stands under another one, which may be gone by now."""
    return {"message_reference": {"message_id": message_id, "fail_if_not_exists": False}}


def nonce(text: str) -> dict[str, Any]:
    """A part of a message: the same again within some minutes is not sent twice."""
    digest = hashlib.sha256(text.encode()).digest()
    return {"nonce": base64.urlsafe_b64encode(digest[:18]).decode(), "enforce_nonce": True}
