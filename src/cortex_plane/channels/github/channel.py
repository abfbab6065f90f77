"""Cards as comments on issues and pull requests, over a GitHub App or a token.

A card stands in a place that a policy names, `owner/repository#number`: GitHub has no private messages. In a public repository it
shows no arguments, and nobody approves it there.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels import comments, oauth
from cortex_plane.channels.github import accounts, webhook_events
from cortex_plane.channels.github.api import GitHubApi, app_token, expect
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

STYLE = comments.CommentStyle(prefix="/", limit=65_000)
"""GitHub takes 65,536 characters."""
REDELIVERY_SECONDS = 300.0
"""How often an App asks which webhooks did not arrive."""
REDELIVERY_PATIENCE = timedelta(days=3)
"""GitHub forgets them then."""
MOST_PAGES = 20
_NEXT_PAGE = re.compile(r'[?&]cursor=([A-Za-z0-9_-]{1,200})[^>]*>; rel="next"')
_PLACE = re.compile(r"([A-Za-z0-9-]{1,39})/([A-Za-z0-9._-]{1,100})#([1-9][0-9]{0,9})")
_RUN = re.compile(r"[A-Za-z0-9-]{1,39}/(?!\.\.?/)[A-Za-z0-9._-]{1,100}/actions/runs/[1-9][0-9]{0,19}")
_REF = re.compile(r"[1-9][0-9]{0,19}")


class GitHubChannel:
    channel_type = "github"
    carries_credentials = False
    """Others read the comments too."""
    traits = channels.ChannelTraits(
        edits=True, threads=True, conversations=True, reason=channels.ReasonInput.FORM, text_limit=STYLE.limit, per_second=1.3,
        chat_seconds=1.0, listens=True,
    )  # fmt: skip
    fields: Sequence[channels.ConnectionField] = (
        channels.ConnectionField(
            name="app_id", description="The App ID, on the App's page under General", required=False, pattern=r"[0-9]{1,20}"
        ),
        channels.ConnectionField(
            name="private_key", description="The .pem file that Generate a private key gives", secret=True, required=False
        ),
        channels.ConnectionField(
            name="installation_id", description="The number at the end of the installation's address", required=False,
            pattern=r"[0-9]{1,20}",
        ),
        channels.ConnectionField(
            name="token", description="Instead of an App: a fine-grained token that may write issues", secret=True, required=False
        ),
        channels.ConnectionField(
            name="webhook_secret", description="The secret of the webhook; an App gets one by itself", secret=True, required=False
        ),
        channels.ConnectionField(
            name="api_url", description="Of a GitHub Enterprise Server: https://HOST/api/v3", required=False
        ),
        *accounts.FIELDS,
    )  # fmt: skip

    def __init__(self, client: VendorClient, *, redelivery_seconds: float = REDELIVERY_SECONDS) -> None:
        self._client, self._api = client, GitHubApi(client)
        self._redelivery_seconds = redelivery_seconds
        self._failing_since: dict[str, datetime] = {}
        """Of webhooks that did not arrive: when GitHub first tried."""

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:  # noqa: ARG002 -- the port's
        """Always: a comment is edited in place, which disturbs nobody."""
        return True

    def shows_whole(self, card: Card) -> bool:
        return comments.fits_whole(card, STYLE)

    async def send(self, outgoing: Outgoing) -> Sent:
        if isinstance(outgoing.content, DeploymentVerdict):
            return await self._send_verdict(outgoing.target, outgoing.content)
        repository, number = _place(outgoing.target.address)
        match outgoing.content:
            case Card() as card:
                return await self._send_card(outgoing, card, repository, number)
            case ChatReply() as reply:
                return await self._send_reply(outgoing, reply, repository, number)
        raise Undeliverable(
            "GitHub carries requests for approval, verdicts about deployments and replies of agents, and nothing else."
        )

    async def _send_card(self, outgoing: Outgoing, card: Card, repository: str, number: str) -> Sent:
        target = outgoing.target
        answer = await self._api.call(target, "GET", f"/repos/{repository}")
        if answer.status == 404:
            raise Undeliverable(
                f"There is no repository {repository}, or this connection may not read it.", address=True
            )
        is_private = webhook_events.is_private(expect(answer, 200))
        text = comments.card_comment(outgoing, card, STYLE, shows_arguments=is_private)
        ref = await self._edit(outgoing, repository, text) if outgoing.earlier else None
        if ref is None:
            ref = await self._post(target, repository, number, text)
        elif card.status is ApprovalStatus.PENDING and card.occasion in comments.NEWS:
            # Last, because only this must not be done again.
            await self._post(target, repository, number, comments.news_comment(card))
        return Sent(message_ref=ref, shown={"arguments": is_private})

    async def _send_verdict(self, target: Target, verdict: DeploymentVerdict) -> Sent:
        """To the run that is held. Whoever does not hear the answer says the same again."""
        if not _RUN.fullmatch(target.address):
            raise Undeliverable("A verdict goes to a run, `owner/repository/actions/runs/NUMBER`.", address=True)
        body = {
            "environment_name": verdict.environment,
            "state": "approved" if verdict.is_allowed else "rejected",
            "comment": comments.verdict_comment(verdict),
        }
        path = f"/repos/{target.address}/deployment_protection_rule"
        expect(await self._api.call(target, "POST", path, body), 204)
        return Sent()

    async def confirm_deployment(
        self,
        target: Target,  # noqa: ARG002 -- the port's
        deployment: channels.HeldDeployment,
    ) -> channels.HeldDeployment | None:
        """As it came: the signature covers all of it."""
        return deployment

    def verdict_address(self, arguments: Mapping[str, Any]) -> str:
        return webhook_events.run_path(arguments)

    async def _edit(self, outgoing: Outgoing, repository: str, text: str) -> str | None:
        """None where somebody deleted the comment."""
        ref = outgoing.earlier or ""
        if not _REF.fullmatch(ref):
            return None
        path = f"/repos/{repository}/issues/comments/{ref}"
        answer = await self._api.call(outgoing.target, "PATCH", path, {"body": text})
        if answer.status == 404:
            return None
        expect(answer, 200)
        return ref

    async def _post(self, target: Target, repository: str, number: str, text: str) -> str:
        path = f"/repos/{repository}/issues/{number}/comments"
        answer = await self._api.call(target, "POST", path, {"body": text})
        if answer.status in (404, 410):
            raise Undeliverable(f"There is no issue or pull request {repository}#{number} to write to.", address=True)
        return str(int(expect(answer, 201)["id"]))

    async def _send_reply(self, outgoing: Outgoing, reply: ChatReply, repository: str, number: str) -> Sent:
        async def send_part(text: str, _: str | None) -> str:
            return await self._post(outgoing.target, repository, number, text)

        return await send_next_part(outgoing, comments.reply_comments(reply, STYLE.limit), send_part)

    async def identify(self, target: Target, inbound_url: str | None) -> channels.ConnectionIdentity:
        oauth.require_both(target)
        if target.secrets.get("token") and not target.secrets.get("private_key"):
            return await self._identify_user(target, inbound_url)
        for name, where in (
            ("app_id", target.config),
            ("private_key", target.secrets),
            ("installation_id", target.config),
        ):
            if not where.get(name):
                raise _missing(
                    name, "A GitHub App needs app_id, private_key and installation_id; or give a token instead."
                )
        app_token(str(target.config["app_id"]), target.secrets["private_key"], datetime.now(UTC))
        answer = await self._api.as_app(target, "GET", "/app")
        if answer.status in (401, 404):
            raise InvalidInput(
                "GitHub does not accept this App id with this private key.",
                hint="Take both from the page of the same App, and check the clock of this machine.", field="private_key",
            )  # fmt: skip
        app = expect(answer, 200)
        try:
            await self._api.installation_token(target)
        except Undeliverable as error:
            raise InvalidInput(
                error.message, hint="Install the App, and take the number at the end of the installation's address.",
                field="installation_id",
            ) from None  # fmt: skip
        secret = target.secrets.get("webhook_secret") or secrets.token_urlsafe(32)
        if inbound_url is not None:
            hook = {"url": inbound_url, "content_type": "json", "secret": secret, "insecure_ssl": "0"}
            expect(await self._api.as_app(target, "PATCH", "/app/hook/config", hook), 200)
        return channels.ConnectionIdentity(
            account=f"{app['slug']}[bot]", external_id=str(app["id"]), secrets={"webhook_secret": secret},
            config={"mode": "polling"} if inbound_url is not None else {}, to_do=_app_tasks(app, inbound_url),
        )  # fmt: skip

    async def _identify_user(self, target: Target, inbound_url: str | None) -> channels.ConnectionIdentity:
        if not target.secrets.get("webhook_secret"):
            raise _missing("webhook_secret", "With a token, choose a secret for the webhook and give it here, too.")
        try:
            user = expect(await self._api.call(target, "GET", "/user"), 200)
        except Undeliverable:
            raise InvalidInput(
                "GitHub does not accept this token.",
                hint="Make a fine-grained token that may write issues.",
                field="token",
            ) from None
        to_do = (
            "Give this plane an address that GitHub reaches: without one, commands in comments do not arrive."
            if inbound_url is None
            else f"Add a webhook to each repository: {inbound_url}, content type application/json, the secret of this connection, "
            "the event Issue comments.",
        )
        return channels.ConnectionIdentity(account=str(user["login"]), external_id=str(user["id"]), to_do=to_do)

    def receive(self, target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
        webhook_events.verify(target.secrets.get("webhook_secret", ""), request.headers, request.body)
        return channels.ReceivedRequest(
            items=webhook_events.read_webhook(request, target.config.get("installation_id"))
        )

    def read(
        self, payload: Mapping[str, Any]
    ) -> channels.InboundEvent | channels.DecidedCall | channels.ConnectionRevoked | None:
        return webhook_events.read_item(payload)

    async def answer(self, target: Target, event: channels.InboundEvent, answer: channels.InboundAnswer) -> str | None:
        """A reaction where all went well, and everywhere in public, where strangers could make us write; words else."""
        repository, number = _place(event.chat.id)
        comment = event.answer_to.get("comment", "")
        content = comments.reaction_to(event, answer)
        if content is not None and _REF.fullmatch(comment):
            # A comment that was deleted meanwhile is no error.
            path = f"/repos/{repository}/issues/comments/{comment}/reactions"
            await self._api.call(target, "POST", path, {"content": content})
            return None
        await self._post(target, repository, number, comments.answer_comment(answer, STYLE))
        return None

    def account_page(self, target: Target, request: channels.AccountRequest) -> str:
        return accounts.account_page(target, request)

    async def read_account(self, target: Target, request: channels.AccountRequest, code: str) -> channels.VendorAccount:
        return await accounts.read_account(self._client, target, request, code)

    async def listen(self, target: Target, cursor: str | None, deliver: channels.Deliver) -> None:
        """GitHub sends a webhook once. An App finds those that failed, and asks for each again until it arrives or is refused."""
        while True:
            cursor = await self._redeliver(target, cursor)
            await deliver((), cursor)
            await asyncio.sleep(self._redelivery_seconds)

    async def _redeliver(self, target: Target, cursor: str | None) -> str | None:
        """The cursor is the number of the newest delivery that was looked at; each try has a higher one."""
        newest, now = int(cursor or 0), datetime.now(UTC)
        deliveries = await self._deliveries(target, newest)
        arrived = {entry["guid"] for entry in deliveries if 200 <= entry["status_code"] < 300}
        last_tries: dict[str, dict[str, Any]] = {}
        for entry in sorted(deliveries, key=lambda entry: int(entry["id"])):
            last_tries[entry["guid"]] = entry
            self._failing_since.setdefault(entry["guid"], datetime.fromisoformat(entry["delivered_at"]))
        for guid, entry in last_tries.items():
            is_refused = entry["redelivery"] and 400 <= entry["status_code"] < 500
            is_due = int(entry["id"]) > newest and now - self._failing_since[guid] < REDELIVERY_PATIENCE
            if is_due and not is_refused and guid not in arrived:
                path = f"/app/hook/deliveries/{int(entry['id'])}/attempts"
                answer = await self._api.as_app(target, "POST", path)
                if answer.status not in (404, 422):  # GitHub has forgotten it
                    expect(answer, 202)
        self._failing_since = {
            guid: since for guid, since in self._failing_since.items()
            if guid not in arrived and now - since < 2 * REDELIVERY_PATIENCE
        }  # fmt: skip
        return str(max((int(entry["id"]) for entry in deliveries), default=newest))

    async def _deliveries(self, target: Target, newest: int) -> list[dict[str, Any]]:
        """Those after ``newest``, and the rest of the page in which it stands."""
        path, deliveries = "/app/hook/deliveries?per_page=100", list[dict[str, Any]]()
        for _ in range(MOST_PAGES):
            answer = await self._api.as_app(target, "GET", path)
            page = expect(answer, 200)
            deliveries += page
            following = _NEXT_PAGE.search(answer.headers.get("link", ""))
            if following is None or min((int(entry["id"]) for entry in page), default=0) <= newest:
                break
            path = f"/app/hook/deliveries?per_page=100&cursor={following[1]}"
        return deliveries


def _place(address: str) -> tuple[str, str]:
    match = _PLACE.fullmatch(address)
    if match is None or ".." in match[2] or match[2] == ".":
        raise Undeliverable(
            "GitHub reaches nobody in person: a policy names an issue or pull request, `owner/repository#number`.",
            address=True,
        )
    return f"{match[1]}/{match[2]}", match[3]


def _missing(name: str, hint: str) -> InvalidInput:
    return InvalidInput(f"A connection to GitHub needs `{name}`.", hint=hint, field=name)


def _app_tasks(app: Mapping[str, Any], inbound_url: str | None) -> tuple[str, ...]:
    tasks = []
    if inbound_url is None:
        tasks.append("Give this plane an address that GitHub reaches: without one, commands in comments do not arrive.")
    permissions, events = app.get("permissions", {}), app.get("events", [])
    if permissions.get("issues") != "write":
        tasks.append(
            "On the App's page under Permissions: let it read and write Issues, and accept this at the installation."
        )
    if "issue_comment" not in events:
        tasks.append("On the App's page under Permissions: subscribe to the event Issue comment.")
    if "deployment_protection_rule" in events:
        missing = [
            f"{level} {name.capitalize()}"
            for name, level, enough in (("actions", "read", ("read", "write")), ("deployments", "write", ("write",)))
            if permissions.get(name) not in enough
        ]
        if missing:
            tasks.append(
                f"On the App's page under Permissions: for protection rules let it {' and '.join(missing)}, and accept this at the"
                " installation."
            )
    return tuple(tasks)
