"""Webhooks of GitHub: their signature, what of them is stored, and what people want with their comments."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson

from cortex_plane.channels.comments import read_command
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model import channels

PREFIXES = ("/", "/cortex ")
OLDEST_COMMENT = timedelta(days=7)
"""GitHub sends a webhook again for three days. A signature has no time in it, so older comments are not believed."""
OLDEST_DEPLOYMENT = timedelta(days=30)
"""So long GitHub holds one."""
DEPLOY = "github.deploy"
"""The tool that policies name."""
_RUN = re.compile(r"https?://[^?#]*/repos/([^/?#]+/[^/?#]+)/actions/runs/([1-9][0-9]{0,19})/deployment_protection_rule")
_REVOKED = {"deleted": "uninstalled", "suspend": "suspended"}


def verify(secret: str, headers: Mapping[str, str], body: bytes) -> None:
    """Of the raw bytes, in constant time. Raises ``Unauthenticated``."""
    expected = "sha256=" + hmac.digest(secret.encode(), body, hashlib.sha256).hex()
    signature = headers.get("x-hub-signature-256", "")
    if not secret or not hmac.compare_digest(expected.encode(), signature.encode()):
        raise Unauthenticated(
            "The connection or the signature of this webhook is not valid.",
            code="webhook_signature_invalid",
            hint="Give the webhook at GitHub the secret of this connection, and the content type application/json.",
        )


def read_webhook(request: channels.InboundRequest, installation_id: str | None) -> tuple[channels.InboundItem, ...]:
    """What of a webhook concerns somebody. Raises ``InvalidInput`` for one that is malformed. ``installation_id``: of an App, whose
    other installations are not ours, and belong to whoever installed them."""
    try:
        payload = orjson.loads(request.body)
        event, action = request.headers.get("x-github-event", ""), str(payload.get("action", ""))
        if installation_id and "installation" in payload and str(payload["installation"]["id"]) != installation_id:
            return ()
        if (event, action) == ("issue_comment", "created"):
            return _comment_items(payload, request.received_at)
        if (event, action) == ("deployment_protection_rule", "requested") and installation_id:
            return _deployment_items(payload, request)
        if event == "installation" and action in _REVOKED:
            item = {"installation": str(payload["installation"]["id"]), "action": action}
            return (channels.InboundItem(event_id=f"installation:{item['installation']}:{action}", payload=item),)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            "This webhook is not what GitHub sends.", hint="Choose the content type application/json for the webhook."
        ) from None
    return ()


def is_private(repository: Mapping[str, Any]) -> bool:
    """Whatever is not surely private counts as public. GitHub calls a repository private, too, that all of an enterprise reads."""
    return repository.get("private") is True and repository.get("visibility", "private") == "private"


def _comment_items(payload: Mapping[str, Any], now: datetime) -> tuple[channels.InboundItem, ...]:
    comment, sender, repository = payload["comment"], payload["sender"], payload["repository"]
    text = str(comment["body"])
    item = {
        "text": text,
        "comment_id": int(comment["id"]),
        "sender_id": int(sender["id"]),
        "sender": str(sender["login"]),
        "place": f"{repository['full_name']}#{int(payload['issue']['number'])}",
        "is_public": not is_private(repository),
    }
    is_own = int(comment["user"]["id"]) == item["sender_id"] and sender["type"] == comment["user"]["type"] == "User"
    is_young = now - datetime.fromisoformat(str(comment["created_at"])) <= OLDEST_COMMENT
    if not is_own or not is_young or read_command(text, PREFIXES) is None:
        return ()
    # Not by the id of the delivery: the signature does not cover it, so a copy could come under another one.
    return (channels.InboundItem(event_id=f"comment:{item['comment_id']}", payload=item),)


def _deployment_items(payload: Mapping[str, Any], request: channels.InboundRequest) -> tuple[channels.InboundItem, ...]:
    deployment, repository = payload["deployment"], payload["repository"]
    run = _RUN.fullmatch(payload["deployment_callback_url"])
    if run is None or run[1].lower() != repository["full_name"].lower():
        raise ValueError("the run of a deployment is part of its callback's address")
    if request.received_at - datetime.fromisoformat(str(deployment["created_at"])) > OLDEST_DEPLOYMENT:
        return ()
    creator = deployment["creator"]
    arguments = {
        "repository": repository["full_name"], "environment": payload["environment"], "ref": deployment["ref"],
        "sha": deployment["sha"], "run_id": run[2], "event": payload.get("event"), "actor": creator["login"],
        "private": repository["private"] is True,
    }  # fmt: skip
    # The id of a deployment, and not of its delivery, which the signature does not cover. A run that is run again is held again, and
    # then its webhook is another one.
    id = f"deployment:{int(deployment['id'])}:{hashlib.sha256(request.body).hexdigest()}"
    item = {
        "deployment": id,
        "arguments": arguments,
        "creator_id": int(creator["id"]),
        "is_bot": creator["type"] != "User",
    }
    return (channels.InboundItem(event_id=id, payload=item),)


def run_path(arguments: Mapping[str, Any]) -> str:
    """Of the run that a deployment belongs to: `owner/repository/actions/runs/7`."""
    return f"{arguments['repository']}/actions/runs/{arguments['run_id']}"


def _held_deployment(payload: Mapping[str, Any]) -> channels.HeldDeployment:
    arguments = payload["arguments"]
    sender = channels.ChannelSender(id=str(payload["creator_id"]), name=arguments["actor"], is_bot=payload["is_bot"])
    chat = channels.Chat(id=run_path(arguments), is_private=False)
    return channels.HeldDeployment(
        sender=sender, chat=chat, tool=DEPLOY, arguments=arguments, key=payload["deployment"]
    )


def read_item(
    payload: Mapping[str, Any],
) -> channels.InboundEvent | channels.DecidedCall | channels.ConnectionRevoked | None:
    if (event := channels.DecidedCall.of(payload)) is not None:
        return event
    if "deployment" in payload:
        return _held_deployment(payload)
    if "action" in payload:
        return channels.ConnectionRevoked(reason=f"The GitHub App was {_REVOKED[payload['action']]}.")
    command = read_command(payload["text"], PREFIXES)
    if command is None:
        return None
    sender = channels.ChannelSender(id=str(payload["sender_id"]), name=payload["sender"])
    chat = channels.Chat(id=payload["place"], is_private=False)
    answer_to = {"comment": str(payload["comment_id"]), "public": "1" if payload["is_public"] else ""}
    if command.button is not None:
        return channels.ButtonPress(
            sender=sender, chat=chat, answer_to=answer_to, data=command.button.data, note=command.words or None
        )
    # In public an agent says nothing: what it knows from elsewhere would be read by everybody.
    return None if payload["is_public"] else channels.ChatMessage(
        sender=sender, chat=chat, answer_to=answer_to, text=command.words
    )  # fmt: skip
