"""Webhooks of WhatsApp: from the signed request to what people did and what became of messages."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from cortex_plane.channels.whatsapp.api import GROUP, WINDOW_CLOSED, WINDOW_WORDS, problem_of
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.channels import (
    ButtonPress,
    ChannelSender,
    Chat,
    ChatMessage,
    ConnectionRevoked,
    DeliveryReport,
    InboundItem,
    InboundReply,
    InboundRequest,
    ReceivedRequest,
)
from cortex_plane.notify.model.notifications import Target

_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{1,200}")
_MAX_ID = 200
OLDEST_MESSAGE = timedelta(days=8)
"""Meta sends a webhook again for seven days. A signature has no time in it, so older messages are not believed."""
_FILES: Final = ("image", "document", "audio", "video", "sticker", "location", "contacts")
_ENDS: Final = {
    "PARTNER_REMOVED": "The business account was taken away from the app.",
    "PARTNER_APP_UNINSTALLED": "The app was removed from the business account.",
    "ACCOUNT_DELETED": "The business account was deleted.",
    "DISABLED_UPDATE": "Meta disabled the business account.",
}


def receive(target: Target, request: InboundRequest) -> ReceivedRequest:
    if request.method == "GET":
        return _check_address(target, request)
    signature = request.headers.get("x-hub-signature-256", "")
    secret = target.secrets.get("app_secret", "")
    mac = hmac.new(secret.encode(), request.body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(f"sha256={mac}".encode(), signature.encode()) or not secret:
        raise _forged()
    try:
        payload = orjson.loads(request.body)
        number = str(target.config.get("phone_number_id", ""))
        business = str(target.config.get("business_account", ""))
        return ReceivedRequest(items=tuple(_items(payload, number, business, request.received_at)))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise InvalidInput("The body of this request is no webhook of WhatsApp.") from None


def _check_address(target: Target, request: InboundRequest) -> ReceivedRequest:
    """Meta asks for it once, when a person enters the address: it wants its challenge back."""
    token, challenge = request.query.get("hub.verify_token", ""), request.query.get("hub.challenge", "")
    expected = target.secrets.get("verify_token", "")
    is_valid = hmac.compare_digest(token.encode(), expected.encode())
    if not expected or not is_valid or request.query.get("hub.mode") != "subscribe":
        raise _forged()
    if not _CHALLENGE.fullmatch(challenge):
        raise InvalidInput("The challenge of this request is none of Meta's.")
    return ReceivedRequest(reply=InboundReply(body=challenge.encode()))


def _forged() -> Unauthenticated:
    return Unauthenticated("The signature or the verify token of this request is not that of the connection.")


def _items(payload: Mapping[str, Any], number: str, business: str, now: datetime) -> Iterator[InboundItem]:
    """One webhook carries several entries, each several changes, each several messages and statuses. An app may serve more numbers."""
    for entry in payload["entry"]:
        for change in entry["changes"]:
            value = change["value"]
            if change["field"] == "account_update" and _is_end(value) and business in ("", _account_of(entry, value)):
                event = str(value["event"])
                yield InboundItem(
                    event_id=f"{event}:{entry['id']}:{entry.get('time', '')}"[:_MAX_ID], payload={"end": event}
                )
            if change["field"] != "messages" or str(value["metadata"]["phone_number_id"]) != number:
                continue
            contacts = value.get("contacts", [])
            for message in value.get("messages", ()):
                if now.timestamp() - int(message["timestamp"]) > OLDEST_MESSAGE.total_seconds():
                    continue
                contact = _contact(contacts, message)
                yield InboundItem(
                    event_id=str(message["id"])[:_MAX_ID], payload={"message": message, "contact": contact}
                )
            for status in value.get("statuses", ()):
                # Statuses come in any order and more than once. Only a failure says something that is not known yet.
                if status["status"] == "failed":
                    id = str(status["id"])
                    report = {"id": id, "errors": status.get("errors", [])}
                    yield InboundItem(event_id=f"{id[: _MAX_ID - 10]}:failed", payload={"status": report})


def _is_end(value: Mapping[str, Any]) -> bool:
    """`DISABLED_UPDATE` also announces that an account will be disabled, and that it is enabled again."""
    if value.get("event") == "DISABLED_UPDATE":
        return bool(value.get("ban_info", {}).get("waba_ban_state") == "DISABLE")
    return value.get("event") in _ENDS


def _account_of(entry: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    """The business account that an update is about: `PARTNER_…` come from the account of the business that owns it."""
    return str(value.get("waba_info", {}).get("waba_id") or entry["id"])


def _contact(contacts: list[dict[str, Any]], message: Mapping[str, Any]) -> dict[str, Any]:
    """Who wrote it, by phone number or by the id that the business has of them. Either may be missing."""
    for theirs, own in (("wa_id", "from"), ("user_id", "from_user_id")):
        for contact in contacts:
            if message.get(own) and contact.get(theirs) == message[own]:
                return contact
    return {}


def read(payload: Mapping[str, Any]) -> ButtonPress | ChatMessage | DeliveryReport | ConnectionRevoked | None:
    if "end" in payload:
        return ConnectionRevoked(reason=_ENDS[payload["end"]])
    if "status" in payload:
        errors = payload["status"]["errors"]
        code, problem = problem_of(errors[0] if errors else None)
        words = (
            WINDOW_WORDS if code == WINDOW_CLOSED else f"WhatsApp did not deliver it, {code}: {problem or 'no reason'}"
        )
        return DeliveryReport(message_ref=payload["status"]["id"], problem=words)
    return _read_message(payload["message"], payload["contact"])


def _read_message(message: Mapping[str, Any], contact: Mapping[str, Any]) -> ButtonPress | ChatMessage | None:
    event = _event(message, contact)
    reply_to = (message.get("context") or {}).get("id")
    if event is None:
        return None
    match message["type"]:
        case "text":
            return ChatMessage(**event, text=str(message["text"]["body"]), reply_to=reply_to)
        case "interactive" if "button_reply" in message["interactive"]:
            return ButtonPress(**event, data=str(message["interactive"]["button_reply"]["id"]), message_ref=reply_to)
        case "button":
            event["answer_to"]["template"] = "yes"
            return ButtonPress(**event, data=str(message["button"].get("payload", "")), message_ref=reply_to)
        case kind if kind in _FILES:
            content = message[kind] if isinstance(message.get(kind), Mapping) else {}
            name, caption = str(content.get("filename") or kind), str(content.get("caption") or "")
            return ChatMessage(**event, text=caption, reply_to=reply_to, attachments=(name,))
    return None


def _event(message: Mapping[str, Any], contact: Mapping[str, Any]) -> dict[str, Any] | None:
    phone, user_id = message.get("from") or contact.get("wa_id"), message.get("from_user_id") or contact.get("user_id")
    id = phone or user_id
    if not id:
        return None
    group = message.get("group_id")
    name = (contact.get("profile") or {}).get("name") or id
    return {
        "sender": ChannelSender(id=str(id), name=str(name), owner=str(user_id) if user_id else None),
        "chat": Chat(id=f"{GROUP}{group}" if group else str(id), is_private=not group),
        "answer_to": {"message_id": str(message["id"])},
    }
