"""Interactions of Discord: presses, forms and slash commands, from the signed request or the Gateway to what a person did.

Discord wants the first response within three seconds, so it does not wait for the plane: a form opens at once, and for all else
Discord is told that an answer follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.channels import (
    ButtonAction,
    ButtonPress,
    ChannelSender,
    Chat,
    ChatMessage,
    InboundItem,
    InboundReply,
    InboundRequest,
    ReceivedRequest,
    read_button,
)

SKEW_SECONDS = 15 * 60
"""As long as the token of an interaction lives: an older one could not be answered."""
PING, COMMAND, COMPONENT, FORM = 1, 2, 3, 5
PONG, MESSAGE_LATER, UPDATE_LATER, OPEN_FORM = 1, 5, 6, 9
EPHEMERAL = 64
_DIRECT = 1
"""The context of a chat with the bot alone, and the type of its channel."""
_SUBCOMMAND, _TEXT = 1, 3
_LABEL, _TEXT_INPUT, _PARAGRAPH = 18, 4, 2
LONGEST_NOTE = 1000
NOTE = "note"

FREE_TEXT = "ask"
COMMANDS: Final[tuple[tuple[str, str, tuple[tuple[str, str, bool], ...]], ...]] = (
    (FREE_TEXT, "Write to the agent", (("text", "What to say", True),)),
    ("new", "Begin a new conversation", ()),
    ("status", "What the agent is doing", ()),
    ("pause", "Pause the agent", ()),
    ("resume", "Let the agent go on", ()),
    ("agents", "List the agents, or choose one", (("name", "The agent to talk to", False),)),
    ("delegate", "Let a colleague decide a request instead of you", (
        ("request", "The id below the request", True), ("name", "Your colleague", True), ("reason", "Why", False),
    )),
    ("link", "Link this account to yours on the plane", (("code", "The code that the dashboard shows", True),)),
    ("help", "What you can do here", ()),
)  # fmt: skip
"""Verb, description; of each of its options the name, what it is for, whether it is required."""
_TYPED_COMMAND = re.compile(rf"(?<![\w/])/(?=({'|'.join(verb for verb, *_ in COMMANDS)})\b)")


def as_typed(text: str) -> str:
    """The plane names its commands as `/status`; people type them here as `/cortex status`."""
    return _TYPED_COMMAND.sub("/cortex ", text)


def commands() -> list[dict[str, Any]]:
    """The one command `/cortex`, as Discord registers it."""
    verbs = []
    for verb, description, declared in COMMANDS:
        options = [_option(*option) for option in declared]
        verbs.append({"type": _SUBCOMMAND, "name": verb, "description": description, "options": options})
    description = "Talk to an agent, and steer it"
    return [{"type": 1, "name": "cortex", "description": description, "contexts": [0, 1], "options": verbs}]


def _option(name: str, description: str, required: bool) -> dict[str, Any]:
    return {"type": _TEXT, "name": name, "description": description, "required": required}


def receive(public_key: str, request: InboundRequest) -> ReceivedRequest:
    _verify(public_key, request)
    try:
        payload = orjson.loads(request.body)
        if payload["type"] == PING:
            return ReceivedRequest(reply=_reply({"type": PONG}))
        response, items = begin(payload)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise InvalidInput("The body of this request is no interaction of Discord.") from None
    return ReceivedRequest(reply=_reply(response), items=items)


def begin(payload: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[InboundItem, ...]]:
    """The first response, and what is to be stored. Raises ``ValueError``, ``KeyError``, ``TypeError``, ``AttributeError`` or ``IndexError``
    for what is no interaction of Discord."""
    kind = payload["type"]
    if kind not in (COMMAND, COMPONENT, FORM):
        raise ValueError("another kind of interaction")
    item = InboundItem(event_id=str(payload["id"])[:200], payload=_essence(payload))
    if kind == COMPONENT and (form := _form(payload["data"]["custom_id"])) is not None:
        return {"type": OPEN_FORM, "data": form}, ()
    later = {"type": UPDATE_LATER} if kind == COMPONENT else {"type": MESSAGE_LATER, "data": {"flags": EPHEMERAL}}
    return later, (item,)


def _verify(public_key: str, request: InboundRequest) -> None:
    timestamp = request.headers.get("x-signature-timestamp", "")
    try:
        if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
            raise ValueError("no time")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        signature = bytes.fromhex(request.headers.get("x-signature-ed25519", ""))
        key.verify(signature, timestamp.encode() + request.body)
        is_valid = abs(request.received_at.timestamp() - int(timestamp)) <= SKEW_SECONDS
    except (ValueError, InvalidSignature):
        is_valid = False
    if not is_valid:
        raise Unauthenticated(
            "The signature of this request is not Discord's, or its time is more than 15 minutes off."
        )


def _reply(content: Mapping[str, Any]) -> InboundReply:
    return InboundReply(body=orjson.dumps(content), content_type="application/json")


def _form(custom_id: str) -> dict[str, Any] | None:
    """The form that a button opens; None where it opens none."""
    button = read_button(custom_id)
    if button is None or button.action not in (ButtonAction.DENY, ButtonAction.RESPOND):
        return None
    is_denial = button.action is ButtonAction.DENY
    text = {
        "type": _TEXT_INPUT, "custom_id": NOTE, "style": _PARAGRAPH, "required": not is_denial, "max_length": LONGEST_NOTE,
    }  # fmt: skip
    label = "Reason (optional)" if is_denial else "Your answer"
    return {
        "custom_id": custom_id,
        "title": "Deny this request" if is_denial else "Respond to the agent",
        "components": [{"type": _LABEL, "label": label, "component": text}],
    }


def _essence(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of an interaction: the message that was pressed on is not."""
    data, user = payload["data"], (payload.get("member") or payload)["user"]
    is_direct = "guild_id" not in payload and (
        payload["context"] == _DIRECT if "context" in payload else payload["channel"]["type"] == _DIRECT
    )
    essence = {
        "type": payload["type"],
        "token": payload["token"],
        "application_id": payload["application_id"],
        "channel_id": payload["channel_id"],
        "is_direct": is_direct,
        "user": person(user),
    }
    if payload["type"] == COMMAND:
        (verb,) = data["options"]
        return {**essence, "verb": str(verb["name"]), "value": _values(verb)}
    essence |= {"custom_id": str(data["custom_id"]), "message_id": (payload.get("message") or {}).get("id")}
    if payload["type"] == FORM:
        essence["note"] = _note(data["components"])
    return essence


def person(user: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of somebody."""
    return {name: user.get(name) for name in ("id", "username", "global_name", "bot")}


def read_sender(user: Mapping[str, Any]) -> ChannelSender:
    return ChannelSender(
        id=str(user["id"]),
        name=str(user.get("global_name") or user.get("username") or user["id"]),
        is_bot=bool(user.get("bot")),
        metadata={"username": str(user.get("username") or "")},
    )


def _values(verb: Mapping[str, Any]) -> str:
    """What was typed, in the order in which the command names it: people fill options in any order."""
    order = {name: n for _, _, options in COMMANDS for n, (name, *_) in enumerate(options)}
    options = sorted(verb.get("options", ()), key=lambda option: order.get(option["name"], 0))
    return " ".join(str(option["value"]) for option in options)


def _note(rows: list[dict[str, Any]]) -> str:
    """The words of a form. Discord has sent them in a label and, before, in a row."""
    inputs = [text for row in rows for text in [row["component"]] * ("component" in row) + row.get("components", [])]
    return next((str(text.get("value") or "") for text in inputs if text.get("custom_id") == NOTE), "")


def read(payload: Mapping[str, Any]) -> ButtonPress | ChatMessage | None:
    event: dict[str, Any] = {
        "sender": read_sender(payload["user"]),
        "chat": Chat(id=str(payload["channel_id"]), is_private=bool(payload["is_direct"])),
        "answer_to": {
            "application_id": str(payload["application_id"]),
            "token": str(payload["token"]),
            "deferred": str(UPDATE_LATER if payload["type"] == COMPONENT else MESSAGE_LATER),
        },
    }
    if payload["type"] == COMMAND:
        verb, value = payload["verb"], payload["value"]
        return ChatMessage(**event, text=value if verb == FREE_TEXT else f"/{verb} {value}".rstrip())
    if payload["type"] not in (COMPONENT, FORM):
        return None
    message_id = payload["message_id"]
    message_ref = None if message_id is None else f"{payload['channel_id']}:{message_id}"
    return ButtonPress(**event, data=payload["custom_id"], message_ref=message_ref, note=payload.get("note"))
