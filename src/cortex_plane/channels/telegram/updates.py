"""Updates of Telegram as events: presses of buttons, and messages to the bot."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any

import orjson

from cortex_plane.channels.card_text import one_line
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model import channels
from cortex_plane.notify.model.notifications import Target

SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 -- the name of a header
ALLOWED_UPDATES = ("message", "callback_query")
LONGEST_NAME = 200
_COMMAND = re.compile(r"/([a-zA-Z0-9_]{1,32})(?:@([a-zA-Z0-9_]{1,64}))?(?=\s|$)")
_ATTACHMENTS = (
    "photo", "document", "video", "video_note", "animation", "audio", "voice", "sticker", "location", "venue", "contact",
    "poll",
)  # fmt: skip


def read_webhook(target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
    """One update. Raises ``Unauthenticated`` without the secret of the webhook."""
    secret = target.secrets.get("webhook_secret", "")
    header = request.headers.get(SECRET_HEADER, "")
    if not hmac.compare_digest(header.encode(), secret.encode()) or not secret:
        raise Unauthenticated(
            "The connection or the signature of this request is not valid.",
            code="event_signature_invalid",
            hint="Check the secret of the connection: `cortex connection check`.",
        )
    try:
        update = orjson.loads(request.body)
    except ValueError:
        raise InvalidInput("The body is no JSON.") from None
    return channels.ReceivedRequest(items=(update_item(target, update),))


def update_item(target: Target, update: Any) -> channels.InboundItem:
    """Stored with what is needed to tell whether it is meant for this bot."""
    id = update.get("update_id") if isinstance(update, dict) else None
    if not isinstance(id, int) or isinstance(id, bool):
        raise InvalidInput("The update has no `update_id`.")
    bot = {name: str(target.config.get(name, "")) for name in ("bot_id", "bot_username")}
    return channels.InboundItem(event_id=str(id), payload={"update": update, **bot})


def read_update(payload: Mapping[str, Any]) -> channels.InboundEvent | None:
    """None for what is meant for nobody: edits, posts of channels, messages of a group that do not name the bot."""
    update = payload.get("update")
    if not isinstance(update, dict):
        return None
    if isinstance(press := update.get("callback_query"), dict):
        return _press(press)
    if isinstance(message := update.get("message"), dict):
        return _message(message, payload)
    return None


def _press(press: Mapping[str, Any]) -> channels.ButtonPress | None:
    sender, data, id = _sender(press), press.get("data"), press.get("id")
    if sender is None or not isinstance(data, str) or not isinstance(id, str):
        return None
    message = press.get("message")
    chat = _chat(message) if isinstance(message, dict) else None
    ref = message_ref(message) if isinstance(message, dict) and chat is not None else None
    return channels.ButtonPress(
        sender=sender,
        chat=chat or channels.Chat(id=sender.id, is_private=True),
        answer_to={"callback_query_id": id},
        data=data,
        message_ref=ref,
    )


def _message(message: Mapping[str, Any], payload: Mapping[str, Any]) -> channels.ChatMessage | None:
    sender, chat = _sender(message), _chat(message)
    # On behalf of a chat: nobody knows which person it was.
    if sender is None or chat is None or "sender_chat" in message:
        return None
    text = message.get("text") or message.get("caption") or ""
    attachments = tuple(_name(message[kind], kind) for kind in _ATTACHMENTS if kind in message)
    if not isinstance(text, str) or not (text or attachments):
        return None
    earlier = message.get("reply_to_message")
    reply_to = message_ref({"chat": message["chat"], **earlier}) if isinstance(earlier, dict) else None
    words = _for_bot(text, str(payload.get("bot_username", "")), is_private=chat.is_private)
    if words is None:
        if reply_to is None or not _is_of(earlier, str(payload.get("bot_id", ""))):
            return None
        words = text
    return channels.ChatMessage(
        sender=sender,
        chat=chat,
        answer_to={"message_id": str(message.get("message_id", ""))},
        text=words,
        reply_to=reply_to,
        attachments=attachments,
    )


def _name(attachment: Any, kind: str) -> str:
    name = attachment.get("file_name") if isinstance(attachment, dict) else None
    return one_line(name, LONGEST_NAME) if isinstance(name, str) and name else kind


def _for_bot(text: str, username: str, *, is_private: bool) -> str | None:
    """The text without the name of the bot; None where it is meant for others. In a group a command counts as `/new@bot` alone."""
    match = _COMMAND.match(text)
    if match is None:
        if is_private:
            return text
        mention = re.compile(rf"(?<!\w)@{re.escape(username)}(?!\w)", re.IGNORECASE)
        return mention.sub("", text).strip() if username and mention.search(text) else None
    name = match[2]
    if name is None:
        return text if is_private else None
    if name.lower() != username.lower():
        return None
    return f"/{match[1]}{text[match.end() :]}"


def _is_of(message: Any, bot_id: str) -> bool:
    author = message.get("from") if isinstance(message, dict) else None
    return isinstance(author, dict) and bool(bot_id) and str(author.get("id")) == bot_id


def _sender(source: Mapping[str, Any]) -> channels.ChannelSender | None:
    user = source.get("from")
    if not isinstance(user, dict) or not isinstance(user.get("id"), int):
        return None
    name = " ".join(str(user[part]) for part in ("first_name", "last_name") if user.get(part))
    metadata = {part: str(user[part]) for part in ("username", "language_code") if user.get(part)}
    return channels.ChannelSender(
        id=str(user["id"]),
        name=one_line(name, LONGEST_NAME) or str(user["id"]),
        is_bot=bool(user.get("is_bot")),
        metadata=metadata,
    )


def _chat(message: Mapping[str, Any]) -> channels.Chat | None:
    chat = message.get("chat")
    if not isinstance(chat, dict) or not isinstance(chat.get("id"), int):
        return None
    thread = message.get("message_thread_id") if message.get("is_topic_message") else None
    return channels.Chat(
        id=str(chat["id"]), is_private=chat.get("type") == "private", thread=None if thread is None else str(thread)
    )


def message_ref(message: Mapping[str, Any]) -> str | None:
    id, chat = message.get("message_id"), message.get("chat")
    return f"{chat['id']}:{id}" if isinstance(id, int) and isinstance(chat, dict) else None


def read_ref(ref: str | None) -> tuple[str, int] | None:
    """The chat and the message that a `message_ref` names."""
    chat, _, id = (ref or "").rpartition(":")
    return (chat, int(id)) if chat and id.isdecimal() else None
