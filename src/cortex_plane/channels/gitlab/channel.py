"""Cards as notes on issues and merge requests.

A card stands in a place that a policy names, `group/project#number` or `group/project!number`: GitLab has no private messages. Where the
project is not private it shows no arguments, and nobody approves it there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels import comments, oauth
from cortex_plane.channels.gitlab import accounts, webhook_events
from cortex_plane.channels.gitlab.api import GitLabApi, success
from cortex_plane.channels.gitlab.deployments import GitLabDeployments, deployment_address
from cortex_plane.channels.reply_parts import send_next_part
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model import channels
from cortex_plane.notify.model.notifications import (
    Card,
    ChatReply,
    DeploymentVerdict,
    Outgoing,
    Sent,
    Target,
    Undeliverable,
)

STYLE = comments.CommentStyle(prefix="/cortex ", limit=100_000)
"""GitLab takes a million characters, which nobody reads."""
POLL_SECONDS = 60.0
"""How often the projects of a connection are asked which deployments wait."""
_PLACE = re.compile(rf"({webhook_events.PROJECT})([#!])([1-9][0-9]{{0,9}})")
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
        chat_seconds=1.0, listens=True,
    )  # fmt: skip
    fields: Sequence[channels.ConnectionField] = (
        channels.ConnectionField(
            name="token",
            description="An access token of a group or project, role Reporter or higher (Developer for deployments), scope api",
            secret=True,
        ),
        channels.ConnectionField(
            name="webhook_secret",
            description="A secret that you choose: the webhook's secret token at GitLab",
            secret=True,
        ),
        channels.ConnectionField(
            name="projects",
            description="Projects in which the plane looks for deployments that wait: group/project, separated by commas",
            required=False,
            pattern=rf" *{webhook_events.PROJECT} *(?:, *{webhook_events.PROJECT} *){{0,19}}",
        ),
        channels.ConnectionField(name="api_url", description="Of your own server: https://HOST/api/v4", required=False),
        *accounts.FIELDS,
    )

    def __init__(self, client: VendorClient, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._client, self._api = client, GitLabApi(client)
        self._deployments, self._poll_seconds = GitLabDeployments(self._api), poll_seconds

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:  # noqa: ARG002 -- the port's
        """Always: a note is edited in place, which disturbs nobody."""
        return True

    def shows_whole(self, card: Card) -> bool:
        return comments.fits_whole(card, STYLE)

    async def send(self, outgoing: Outgoing) -> Sent:
        if isinstance(outgoing.content, DeploymentVerdict):
            await self._deployments.send_verdict(outgoing.target, outgoing.content)
            return Sent()
        place = NotePlace.of(outgoing.target.address)
        if isinstance(outgoing.content, Card):
            return await self._send_card(outgoing, outgoing.content, place)
        if not isinstance(outgoing.content, ChatReply):
            raise Undeliverable(
                "GitLab carries requests for approval, verdicts about deployments and replies of agents, and nothing else."
            )

        async def send_part(text: str, _: str | None) -> str:
            return await self._write(outgoing.target, place, text)

        return await send_next_part(outgoing, comments.reply_comments(outgoing.content, STYLE.limit), send_part)

    async def confirm_deployment(
        self, target: Target, deployment: channels.HeldDeployment
    ) -> channels.HeldDeployment | None:
        return await self._deployments.confirm(target, deployment)

    def verdict_address(self, arguments: Mapping[str, Any]) -> str:
        return deployment_address(arguments)

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
        oauth.require_both(target)
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
                "connection, trigger Comments; and Deployment events, if the plane is to hold deployments."
            )
        projects = _projects(target.config)
        readable = await asyncio.gather(*(self._deployments.may_read(target, project) for project in projects))
        unread = [project for project, may_read in zip(projects, readable, strict=True) if not may_read]
        return channels.ConnectionIdentity(
            account=f"@{user['username']}", external_id=str(user["id"]), config={"mode": "polling" if projects else "webhook"},
            to_do=(task, *(f"Make @{user['username']} a Developer of {project}: it cannot read deployments there." for project in unread)),
        )  # fmt: skip

    def receive(self, target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
        webhook_events.verify(target.secrets.get("webhook_secret", ""), request.headers)
        return channels.ReceivedRequest(items=webhook_events.read_webhook(request))

    def read(self, payload: Mapping[str, Any]) -> channels.InboundEvent | channels.DecidedCall | None:
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

    def account_page(self, target: Target, request: channels.AccountRequest) -> str:
        return accounts.account_page(target, request)

    async def read_account(self, target: Target, request: channels.AccountRequest, code: str) -> channels.VendorAccount:
        return await accounts.read_account(self._client, target, request, code)

    async def listen(self, target: Target, cursor: str | None, deliver: channels.Deliver) -> None:
        """Look for deployments that wait, and for those that do not any more: older servers send no webhook for them, and GitLab does not
        send a lost one again."""
        over_ids: dict[str, set[str]] = {}
        while True:
            problem: Undeliverable | None = None
            for project in _projects(target.config):
                try:
                    waits = await self._deployments.list_held(target, project)
                    over = await self._deployments.list_ended(target, project)
                except Undeliverable as error:
                    if error.gone:
                        raise
                    problem = error  # the others go on
                else:
                    before = over_ids.get(project, set())
                    await deliver([*waits, *(item for item in over if item.event_id not in before)], cursor)
                    over_ids[project] = {item.event_id for item in over}
            await asyncio.sleep(self._poll_seconds)
            if problem is not None:
                raise problem


def _projects(config: Mapping[str, Any]) -> list[str]:
    """Those in which the plane looks for deployments."""
    return [name.strip() for name in str(config.get("projects") or "").split(",") if name.strip()]
