"""Requests of Slack: their signature, and what stands in them as events."""

from __future__ import annotations

import hashlib
import hmac
import html
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from cortex_plane.channels.card_text import one_line
from cortex_plane.channels.slack.blocks import ACTION_PREFIX, FORM
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model import channels
from cortex_plane.notify.model.notifications import Target

MAX_SKEW_SECONDS = 300
MAX_EVENT_ID = 200
_NAMES = ("bot_user_id", "bot_id")
_MENTION = re.compile(r"<@([A-Z0-9]+)(?:\|[^>]*)?>")
_LINK = re.compile(r"<((?:https?|mailto|tel):[^|>]+)(?:\|([^>]*))?>")
_CHANNEL = re.compile(r"<#[A-Z0-9]+\|([^>]*)>")
_SPECIAL = re.compile(r"<!([a-z]+)(?:\^[^|>]*)?(?:\|([^>]*))?>")
_REVOCATIONS = {
    "app_uninstalled": "The app was removed from its workspace.",
    "tokens_revoked": "The token of the app was revoked.",
}


def verify_signature(target: Target, request: channels.InboundRequest) -> None:
    """On the raw bytes. Raises ``Unauthenticated``, in the same words for whatever is wrong."""
    secret = target.secrets.get("signing_secret", "")
    timestamp = request.headers.get("x-slack-request-timestamp", "")
    signature = request.headers.get("x-slack-signature", "")
    is_timely = bool(re.fullmatch(r"[0-9]{1,12}", timestamp)) and (
        abs(request.received_at.timestamp() - int(timestamp)) <= MAX_SKEW_SECONDS
    )
    text = f"v0:{timestamp}:".encode() + request.body
    expected = "v0=" + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    is_equal = hmac.compare_digest(expected.encode(), signature.encode())
    if not (is_equal and is_timely and secret):
        raise Unauthenticated(
            "The connection or the signature of this request is not valid.",
            code="event_signature_invalid",
            hint="Check the secret of the connection: `cortex connection check`.",
        )


def read_request(target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
    """An event, a press, a form or a command. Raises ``Unauthenticated`` and ``InvalidInput``."""
    verify_signature(target, request)
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        content, id = _form(request.body)
    else:
        content, id = _json(request.body), ""
        if content.get("type") == "url_verification":
            challenge = str(content.get("challenge", ""))[:500]
            return channels.ReceivedRequest(reply=channels.InboundReply(body=challenge.encode()))
        id = _event_id(content)
    return channels.ReceivedRequest(items=_items(target, content, id))


def _items(target: Target, content: dict[str, Any], id: str) -> tuple[channels.InboundItem, ...]:
    if not id or len(id) > MAX_EVENT_ID:
        raise InvalidInput("The request names no event.")
    if not _is_of_workspace(content, str(target.config.get("team_id", ""))):
        # The same app in another workspace: its people are none of this connection.
        return ()
    # A token of old apps that proves nothing, and has no place in our tables.
    names = {name: str(target.config.get(name, "")) for name in _NAMES}
    payload = {**{name: value for name, value in content.items() if name != "token"}, "cortex": names}
    return (channels.InboundItem(event_id=id, payload=payload),)


def read_envelope(target: Target, envelope: Mapping[str, Any]) -> tuple[channels.InboundItem, ...]:
    """What Socket Mode wraps: the same payloads, over a connection that the app opened with its own token."""
    content = envelope.get("payload")
    if not isinstance(content, dict):
        return ()
    match envelope.get("type"):
        case "events_api":
            return _items(target, content, _event_id(content))
        case "slash_commands":
            content = {**content, "type": "command"}
    return _items(target, content, _trigger_id(content))


def history_items(target: Target, channel: str, message: Any) -> tuple[channels.InboundItem, ...]:
    """A message in direct messages as the event of it would have been; none for what no person wrote."""
    if not isinstance(message, dict):
        return ()
    event = {**message, "type": "message", "channel": channel, "channel_type": "im"}
    if event.get("thread_ts") == event.get("ts"):
        # What later began a thread stood in none when it was written.
        event.pop("thread_ts", None)
    content = {"type": "event_callback", "team_id": target.config.get("team_id"), "event": event}
    event_id = _event_id(content)
    items = _items(target, content, event_id) if event_id else ()
    return tuple(item for item in items if read_payload(item.payload) is not None)


def _event_id(content: Mapping[str, Any]) -> str:
    """Of a message in direct messages the place where it stands: the history has it too, and knows no ids of events."""
    event = content.get("event")
    if isinstance(event, dict) and event.get("type") == "message" and event.get("subtype") in (None, "file_share"):
        channel, ts = event.get("channel"), event.get("ts")
        if isinstance(channel, str) and isinstance(ts, str) and channel and ts:
            return f"message:{channel}:{ts}"
    return str(content.get("event_id", ""))


def _form(body: bytes) -> tuple[dict[str, Any], str]:
    """The content of an interaction or of a command, and an id: Slack gives them none, and a trigger is used once."""
    try:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    except ValueError:
        raise InvalidInput("The body is no form.") from None
    content: dict[str, Any] = _json(form["payload"].encode()) if "payload" in form else {**form, "type": "command"}
    return content, _trigger_id(content)


def _trigger_id(content: Mapping[str, Any]) -> str:
    trigger = content.get("trigger_id")
    return f"{str(content.get('type', ''))[:50]}:{trigger}" if isinstance(trigger, str) and trigger else ""


def _json(body: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(body)
    except ValueError:
        raise InvalidInput("The body is no JSON.") from None
    if not isinstance(content, dict):
        raise InvalidInput("The body is no JSON object.")
    return content


def _is_of_workspace(content: Mapping[str, Any], team_id: str) -> bool:
    team = content.get("team")
    id = content.get("team_id") or (team.get("id") if isinstance(team, dict) else None)
    return not team_id or id == team_id


def read_payload(payload: Mapping[str, Any]) -> channels.InboundEvent | channels.ConnectionRevoked | None:
    """None for what concerns nobody: the app's own messages, edits, other buttons."""
    match payload.get("type"):
        case "event_callback":
            event = payload.get("event")
            return _event(event, payload) if isinstance(event, dict) else None
        case "block_actions":
            return _press(payload)
        case "view_submission":
            return _submission(payload)
        case "command":
            return _command(payload)
    return None


def _event(
    event: Mapping[str, Any], payload: Mapping[str, Any]
) -> channels.ChatMessage | channels.ConnectionRevoked | None:
    kind = str(event.get("type"))
    if kind in _REVOCATIONS:
        return channels.ConnectionRevoked(reason=_REVOCATIONS[kind])
    cortex = payload.get("cortex")
    own = cortex if isinstance(cortex, dict) else {}
    user, channel, ts = event.get("user"), event.get("channel"), event.get("ts")
    if not (isinstance(user, str) and isinstance(channel, str) and isinstance(ts, str)):
        return None
    if event.get("bot_id") or user == own.get("bot_user_id") or event.get("subtype") not in (None, "file_share"):
        return None
    is_private = kind == "message" and event.get("channel_type") == "im"
    # A mention in direct messages comes a second time, as a message.
    if not is_private and (kind != "app_mention" or channel.startswith("D")):
        return None
    thread = event.get("thread_ts")
    thread = thread if isinstance(thread, str) else None
    files = event.get("files")
    names = (
        tuple(one_line(str(file.get("name", "file")), 200) for file in files if isinstance(file, dict))
        if isinstance(files, list)
        else ()
    )
    return channels.ChatMessage(
        sender=channels.ChannelSender(id=user, name=user),
        chat=channels.Chat(id=user, is_private=True, thread=thread)
        if is_private
        else channels.Chat(id=channel, is_private=False, thread=thread or ts),
        answer_to={"channel": channel, "thread": thread or ("" if is_private else ts)},
        text=plain(str(event.get("text") or ""), str(own.get("bot_user_id", ""))),
        reply_to=f"{channel}:{thread}" if thread and thread != ts else None,
        attachments=names,
    )


def plain(text: str, bot_user: str) -> str:
    """Slack's markup as the text that the person wrote, without the mention of the app."""
    text = _MENTION.sub(lambda match: "" if match[1] == bot_user else f"@{match[1]}", text)
    text = _LINK.sub(lambda match: match[1] if match[2] in (None, match[1]) else f"{match[2]} ({match[1]})", text)
    text = _CHANNEL.sub(r"#\1", text)
    text = _SPECIAL.sub(lambda match: match[2] or f"@{match[1]}", text)
    return html.unescape(text).strip()


def _press(payload: Mapping[str, Any]) -> channels.ButtonPress | None:
    sender, actions, container = _sender(payload), payload.get("actions"), payload.get("container")
    action = actions[0] if isinstance(actions, list) and actions and isinstance(actions[0], dict) else {}
    data = action.get("value")
    if sender is None or not isinstance(data, str) or not str(action.get("action_id", "")).startswith(ACTION_PREFIX):
        return None
    place = container if isinstance(container, dict) else {}
    channel, ts = place.get("channel_id"), place.get("message_ts")
    if not isinstance(channel, str) or not isinstance(ts, str):
        return None
    return channels.ButtonPress(
        sender=sender,
        chat=_chat(channel, sender.id),
        answer_to=_answers(payload, channel),
        data=data,
        message_ref=f"{channel}:{ts}",
    )


def _submission(payload: Mapping[str, Any]) -> channels.ButtonPress | None:
    """The words of a form. What pressed button it belongs to stands in its metadata, which Slack hands back unseen."""
    sender, view = _sender(payload), payload.get("view")
    if sender is None or not isinstance(view, dict) or view.get("callback_id") != FORM:
        return None
    try:
        metadata = orjson.loads(str(view.get("private_metadata", "")))
        words = view["state"]["values"]["words"]["words"]["value"]
        data, channel, ref = (str(metadata[name]) for name in ("data", "channel", "ref"))
    except (ValueError, KeyError, TypeError):
        return None
    url = str(metadata.get("response_url", ""))
    return channels.ButtonPress(
        sender=sender,
        chat=_chat(channel, sender.id),
        answer_to={"channel": channel, "response_url": url},
        data=data,
        message_ref=ref,
        note=words if isinstance(words, str) else "",
    )


def _command(payload: Mapping[str, Any]) -> channels.ChatMessage | None:
    """`/cortex status`. Nobody else sees it, wherever it is typed, so its chat is the one with the app."""
    user, text = payload.get("user_id"), str(payload.get("text") or "").strip()
    if not isinstance(user, str) or not user:
        return None
    name = one_line(str(payload.get("user_name") or user), 200)
    return channels.ChatMessage(
        sender=channels.ChannelSender(id=user, name=name),
        chat=channels.Chat(id=user, is_private=True),
        answer_to=_answers(payload, str(payload.get("channel_id") or "")),
        text=f"/{text.removeprefix('/')}" if text else "/help",
    )


def _chat(channel: str, user: str) -> channels.Chat:
    """Direct messages are named by their person: commands have no other name for them."""
    return channels.Chat(id=user if channel.startswith("D") else channel, is_private=channel.startswith("D"))


def _answers(payload: Mapping[str, Any], channel: str) -> dict[str, str]:
    values = {name: payload.get(name) for name in ("response_url", "trigger_id")}
    return {"channel": channel, **{name: value for name, value in values.items() if isinstance(value, str)}}


def _sender(payload: Mapping[str, Any]) -> channels.ChannelSender | None:
    user = payload.get("user")
    if not isinstance(user, dict) or not isinstance(user.get("id"), str):
        return None
    name = one_line(str(user.get("name") or user.get("username") or user["id"]), 200)
    return channels.ChannelSender(id=user["id"], name=name)


def read_ref(ref: str | None) -> tuple[str, str] | None:
    """The channel and the time of the message that a `message_ref` names."""
    channel, _, ts = (ref or "").partition(":")
    return (channel, ts) if channel and ts else None
