"""Webhooks of GitLab: their token, what of them is stored, what people want with their notes, and which deployments wait."""

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
DEPLOY = "gitlab.deploy"
"""The tool that policies name."""
PROJECT = r"[A-Za-z0-9_.-]{1,255}(?:/[A-Za-z0-9_.-]{1,255}){1,20}"
"""The path of a project, as a regular expression."""
OVER = frozenset({"running", "success", "failed", "canceled", "skipped"})
"""What GitLab calls a deployment that it does not hold, or not any more."""
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


def read_webhook(request: channels.InboundRequest) -> tuple[channels.InboundItem, ...]:
    """The command in a new note, or a deployment that waits or does not wait any more. Raises ``InvalidInput`` for what GitLab does not send."""
    try:
        payload = orjson.loads(request.body)
        if payload.get("object_kind") == "deployment":
            return _deployment_items(payload)
        if payload.get("object_kind") != "note":
            return ()
        note, user, project = payload["object_attributes"], payload["user"], payload["project"]
        kind, sign = _SIGNS.get(note["noteable_type"], ("", ""))
        is_own = note.get("action") == "create" and not note.get("system") and int(note["author_id"]) == int(user["id"])
        text = str(note["note"])
        if not kind or not is_own or is_bot(str(user["username"])) or read_command(text, PREFIXES) is None:
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
            "This webhook is not what GitLab sends.",
            hint="Choose Comments and Deployment events, and nothing else, as its triggers.",
        ) from None
    return (channels.InboundItem(event_id=f"note:{item['note_id']}", payload=item),)


def is_bot(username: str) -> bool:
    return _BOT.fullmatch(username) is not None


def _deployment_items(payload: Mapping[str, Any]) -> tuple[channels.InboundItem, ...]:
    """A manual job without an approval rule is blocked, too: GitLab is asked which it is when the event is handled."""
    status = payload["status"]
    held = held_item(payload["project"]["path_with_namespace"], payload["deployment_id"], payload["environment"])
    if status == "blocked":
        return (held,)
    if status in OVER:
        return (ended_item(held, status),)
    return ()


def held_item(project: str, deployment_id: int, environment: str) -> channels.InboundItem:
    """The same for each webhook and each look: GitLab numbers the deployments of all its projects, and a job that is run again has a new
    one."""
    if re.fullmatch(PROJECT, project) is None:
        raise ValueError("the path of a project names its group, too")
    id = f"deployment:{int(deployment_id)}"
    place = {"project": project, "deployment_id": str(int(deployment_id)), "environment": str(environment)}
    return channels.InboundItem(event_id=id, payload={"deployment": id, **place})


def ended_item(held: channels.InboundItem, status: str) -> channels.InboundItem:
    """That GitLab does not hold it any more, and what it calls it now."""
    return channels.InboundItem(event_id=f"{held.event_id}:over", payload={**held.payload, "ended": status})


def _read_deployment(payload: Mapping[str, Any]) -> channels.HeldDeployment | channels.EndedDeployment:
    """With what is needed to find it. Until GitLab was asked, nobody has started it, and it counts as public."""
    key = payload["deployment"]
    origin: dict[str, Any] = {
        "sender": channels.ChannelSender(id="", name="", is_bot=True),
        "chat": channels.Chat(id=key, is_private=False),
    }
    arguments = {name: payload[name] for name in ("project", "deployment_id", "environment")} | {"private": False}
    held = channels.HeldDeployment(**origin, tool=DEPLOY, arguments=arguments, key=key)
    if "ended" not in payload:
        return held
    return channels.EndedDeployment(
        **origin, deployment=held, reason=f"GitLab does not hold it any more, and calls it {payload['ended']}"
    )


def read_item(payload: Mapping[str, Any]) -> channels.InboundEvent | channels.DecidedCall | None:
    if (event := channels.DecidedCall.of(payload)) is not None:
        return event
    if "deployment" in payload:
        return _read_deployment(payload)
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
