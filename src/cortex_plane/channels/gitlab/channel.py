"""Cards as notes on issues and merge requests.

A card stands in a place that a policy names, `group/project#number` or `group/project!number`: GitLab has no private messages. Where the
project is not private it shows no arguments, and nobody approves it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels import comments
from cortex_plane.channels.gitlab import webhook_events
from cortex_plane.channels.gitlab.api import GitLabApi, success
from cortex_plane.channels.reply_parts import send_next_part
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model import channels
from cortex_plane.notify.model.notifications import Card, ChatReply, Outgoing, Sent, Target, Undeliverable

STYLE = comments.CommentStyle(prefix="/cortex ", limit=100_000)
"""GitLab takes a million characters, which nobody reads."""
_PLACE = re.compile(r"([A-Za-z0-9_.-]{1,255}(?:/[A-Za-z0-9_.-]{1,255}){1,20})([#!])([1-9][0-9]{0,9})")
_KINDS = {"#": "issues", "!": "merge_requests"}
_REF = re.compile(r"[1-9][0-9]{0,19}")


@dataclass(frozen=True, slots=True)
class NotePlace:
    project: str
    """Its path, as one part of an address."""
    kind: str
    number: str

    @classmethod
    def of(cls, address: str) -> NotePlace:
        match = _PLACE.fullmatch(address)
        if match is None:
            raise Undeliverable(
                "GitLab reaches nobody in person: a policy names an issue or a merge request, `group/project#1` or `group/project!1`.",
                address=True,
            )
        return cls(quote(match[1], safe=""), _KINDS[match[2]], match[3])

    @property
    def notes(self) -> str:
        return f"/projects/{self.project}/{self.kind}/{self.number}/notes"


class GitLabChannel:
    channel_type = "gitlab"
    carries_credentials = False
    """Others read the notes too."""
    traits = channels.ChannelTraits(
        edits=True, threads=True, conversations=True, reason=channels.ReasonInput.FORM, text_limit=STYLE.limit, per_second=1.0,
        chat_seconds=1.0,
    )  # fmt: skip
    fields: Sequence[channels.ConnectionField] = (
        channels.ConnectionField(
            name="token",
            description="An access token of a group or project, role Reporter or higher, scope api",
            secret=True,
        ),
        channels.ConnectionField(
            name="webhook_secret",
            description="A secret that you choose: the webhook's secret token at GitLab",
            secret=True,
        ),
        channels.ConnectionField(name="api_url", description="Of your own server: https://HOST/api/v4", required=False),
    )

    def __init__(self, client: VendorClient) -> None:
        self._api = GitLabApi(client)

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:  # noqa: ARG002 -- the port's
        """Always: a note is edited in place, which disturbs nobody."""
        return True

    def shows_whole(self, card: Card) -> bool:
        return comments.fits_whole(card, STYLE)

    async def send(self, outgoing: Outgoing) -> Sent:
        place = NotePlace.of(outgoing.target.address)
        if isinstance(outgoing.content, Card):
            return await self._send_card(outgoing, outgoing.content, place)
        if not isinstance(outgoing.content, ChatReply):
            raise Undeliverable("GitLab carries requests for approval and replies of agents, and nothing else.")

        async def send_part(text: str, _: str | None) -> str:
            return await self._write(outgoing.target, place, text)

        return await send_next_part(outgoing, comments.reply_comments(outgoing.content, STYLE.limit), send_part)

    async def _send_card(self, outgoing: Outgoing, card: Card, place: NotePlace) -> Sent:
        target = outgoing.target
        project = await self._api.call(target, "GET", f"/projects/{place.project}")
        if project.status == 404:
            raise Undeliverable(
                f"There is no project for {target.address}, or this connection may not read it.", address=True
            )
        # What every user of the server may read is not private either.
        is_private = success(project).get("visibility") == "private"
        text = comments.card_comment(outgoing, card, STYLE, shows_arguments=is_private)
        ref = outgoing.earlier if outgoing.earlier and _REF.fullmatch(outgoing.earlier) else None
        if ref is not None:
            edit = await self._api.call(target, "PUT", f"{place.notes}/{ref}", {"body": text})
            if edit.status == 404:
                ref = None  # somebody deleted it
            else:
                success(edit)
        if ref is None:
            ref = await self._write(target, place, text)
        elif card.status is ApprovalStatus.PENDING and card.occasion in comments.NEWS:
            # Last, because only this must not be done again.
            await self._write(target, place, comments.news_comment(card))
        return Sent(message_ref=ref, shown={"arguments": is_private})

    async def _write(self, target: Target, place: NotePlace, text: str) -> str:
        answer = await self._api.call(target, "POST", place.notes, {"body": text})
        if answer.status == 404:
            raise Undeliverable(
                f"There is nothing at {target.address} that this connection may write to.", address=True
            )
        return str(int(success(answer)["id"]))

    async def identify(self, target: Target, inbound_url: str | None) -> channels.ConnectionIdentity:
        for name in ("token", "webhook_secret"):
            if not target.secrets.get(name):
                raise InvalidInput(
                    f"A connection to GitLab needs `{name}`.", hint="See docs/channels/gitlab.md.", field=name
                )
        try:
            user = success(await self._api.call(target, "GET", "/user"))
            scopes = success(await self._api.call(target, "GET", "/personal_access_tokens/self")).get("scopes", [])
        except Undeliverable as error:
            raise InvalidInput(
                f"GitLab does not accept this token. {error.message}",
                hint="Make one with the scope api.",
                field="token",
            ) from None
        if "api" not in scopes:
            raise InvalidInput(
                "This token may not write: it lacks the scope api.", hint="Make one with the scope api.", field="token"
            )
        task = "Give this plane an address that GitLab reaches: without one, commands in notes do not arrive."
        if inbound_url is not None:
            task = (
                f"Add a webhook to the group or to each project (Settings, Webhooks): {inbound_url}, the secret token of this "
                "connection, trigger Comments."
            )
        return channels.ConnectionIdentity(account=f"@{user['username']}", external_id=str(user["id"]), to_do=(task,))

    def receive(self, target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
        webhook_events.verify(target.secrets.get("webhook_secret", ""), request.headers)
        return channels.ReceivedRequest(items=webhook_events.read_webhook(request))

    def read(self, payload: Mapping[str, Any]) -> channels.InboundEvent | None:
        return webhook_events.read_item(payload)

    async def answer(self, target: Target, event: channels.InboundEvent, answer: channels.InboundAnswer) -> str | None:
        """An emoji where all went well, and everywhere in public, where strangers could make us write; words else."""
        place = NotePlace.of(event.chat.id)
        emoji = comments.reaction_to(event, answer)
        if emoji is None:
            await self._write(target, place, comments.answer_comment(answer, STYLE))
        elif _REF.fullmatch(note := event.answer_to.get("note", "")):
            # A note that was deleted meanwhile, or has the emoji already, is no error.
            name = {"+1": "thumbsup", "confused": "confused"}[emoji]
            await self._api.call(target, "POST", f"{place.notes}/{note}/award_emoji", {"name": name})
        return None

    async def listen(self, target: Target, cursor: str | None, deliver: channels.Deliver) -> None:  # noqa: ARG002 -- the port's
        raise InvalidInput("GitLab posts what people write; nothing can be fetched from it.")
