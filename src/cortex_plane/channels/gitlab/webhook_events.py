"""Webhooks of GitLab: their token, what of them is stored, and what people want with their notes."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any

import orjson

from cortex_plane.channels.comments import read_command
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model import channels

PREFIXES = ("/cortex ",)
"""`/approve` is a command of GitLab's own."""
PRIVATE_LEVEL = 0
_SIGNS = {"Issue": ("issue", "#"), "MergeRequest": ("merge_request", "!")}
_BOT = re.compile(
    r"(project|group|service_account_group|service_account_project)_[0-9]+_(bot_?)?[0-9a-f]*|ghost|support-bot"
)
"""The users of access tokens. What a program writes decides nothing."""


def verify(secret: str, headers: Mapping[str, str]) -> None:
    """In constant time. GitLab signs nothing: it sends the secret itself. Raises ``Unauthenticated``."""
    if not secret or not hmac.compare_digest(secret.encode(), headers.get("x-gitlab-token", "").encode()):
        raise Unauthenticated(
            "The connection or the secret token of this webhook is not valid.",
            code="webhook_signature_invalid",
            hint="Give the webhook at GitLab the webhook_secret of this connection as its secret token.",
        )


def is_bot_name(username: str) -> bool:
    return _BOT.fullmatch(username) is not None


def read_webhook(request: channels.InboundRequest) -> tuple[channels.InboundItem, ...]:
    """The command in a new note. Raises ``InvalidInput`` for what GitLab does not send."""
    try:
        payload = orjson.loads(request.body)
        if payload.get("object_kind") != "note":
            return ()
        note, user, project = payload["object_attributes"], payload["user"], payload["project"]
        kind, sign = _SIGNS.get(note["noteable_type"], ("", ""))
        is_own = note.get("action") == "create" and not note.get("system") and int(note["author_id"]) == int(user["id"])
        text = str(note["note"])
        if not kind or not is_own or is_bot_name(str(user["username"])) or read_command(text, PREFIXES) is None:
            return ()
        item = {
            "text": text,
            "note_id": int(note["id"]),
            "user_id": int(user["id"]),
            "username": str(user["username"]),
            "place": f"{project['path_with_namespace']}{sign}{int(payload[kind]['iid'])}",
            "is_public": int(project["visibility_level"]) != PRIVATE_LEVEL,
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            "This webhook is not what GitLab sends.", hint="Choose Comments, and nothing else, as its trigger."
        ) from None
    return (channels.InboundItem(event_id=f"note:{item['note_id']}", payload=item),)


def read_item(payload: Mapping[str, Any]) -> channels.InboundEvent | None:
    command = read_command(payload["text"], PREFIXES)
    if command is None:
        return None
    origin: dict[str, Any] = {
        "sender": channels.ChannelSender(id=str(payload["user_id"]), name=payload["username"]),
        "chat": channels.Chat(id=payload["place"], is_private=False),
        "answer_to": {"note": str(payload["note_id"]), "public": "1" if payload["is_public"] else ""},
    }
    if command.button is not None:
        return channels.ButtonPress(**origin, data=command.button.data, note=command.words or None)
    return None if payload["is_public"] else channels.ChatMessage(**origin, text=command.words)
