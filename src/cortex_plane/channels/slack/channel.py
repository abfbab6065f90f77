"""The channel to Slack: cards that change in place, reasons by forms, conversations in direct messages and by mentions.

A card is one message in the direct messages of its person with the app, or in a shared channel. Whatever is only for the person who
pressed or typed is shown to nobody else.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels import card_text
from cortex_plane.channels.markdown import visible_text
from cortex_plane.channels.reply_parts import send_next_part
from cortex_plane.channels.slack import blocks, events, history, socket_mode
from cortex_plane.channels.slack.manifest import app_manifest, missing_scopes
from cortex_plane.channels.slack.web_api import NO_MESSAGE_TO_EDIT, TOO_LATE, SlackAnswer, SlackApi
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.vendor_socket import require_websockets
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model import channels
from cortex_plane.notify.model import notifications as notify_model
from cortex_plane.notify.model.notifications import Card, ChatReply, Occasion, Outgoing, Sent, Target, Undeliverable

THREAD_NOTES: Final = frozenset({Occasion.REMINDED, Occasion.ESCALATED, Occasion.DELEGATED, Occasion.CHANGED})
"""What a person notices only as a message of its own: an edit makes no sound."""
MOST_CHATS = 10_000
_TOO_SLOW = "Slack gave no time for the form. Press the button again."
_QUIET = {"unfurl_links": False, "unfurl_media": False}


class SlackChannel:
    channel_type = "slack"
    carries_credentials = False
    traits = channels.ChannelTraits(
        most_buttons=5, edits=True, threads=True, conversations=True, reason=channels.ReasonInput.FORM,
        text_limit=blocks.REPLY_LIMIT, per_second=20.0, chat_seconds=1.0, stream_seconds=2.0,
        streams_per_second=0.6,  # of the 50 edits that Slack takes in a minute, the last one of each answer needs some
        listens=True,
    )  # fmt: skip
    fields: Sequence[channels.ConnectionField] = (
        channels.ConnectionField(
            name="bot_token", secret=True, pattern=r"xoxb-[A-Za-z0-9-]{10,200}",
            description="The Bot User OAuth Token under *OAuth & Permissions* of the app.",
        ),
        channels.ConnectionField(
            name="signing_secret", secret=True, required=False, pattern=r"[a-f0-9]{32}",
            description="The Signing Secret under *Basic Information* of the app; not with Socket Mode.",
        ),
        channels.ConnectionField(
            name="mode", required=False, choices=("http", "socket"),
            description="`http`: Slack posts to the public https address of the plane. `socket`: the plane connects to Slack, and "
            "needs no public address. Without it: socket where there is an `app_token`.",
        ),
        channels.ConnectionField(
            name="app_token", secret=True, required=False, pattern=r"xapp-[A-Za-z0-9-]{10,200}",
            description="An App-Level Token with the scope connections:write, under *Basic Information*; for Socket Mode alone.",
        ),
        channels.ConnectionField(
            name="api_url", required=False, pattern=r"https?://[^\s?#]{1,300}",
            description="The base address of the Web API, where it is not Slack's own.",
        ),
    )  # fmt: skip

    def __init__(self, client: VendorClient) -> None:
        self._client, self._api = client, SlackApi(client)
        # What Slack would say again: the direct messages of a person. Forgetting it costs one call.
        self._chats: OrderedDict[tuple[Any, str], str] = OrderedDict()

    async def close(self) -> None:
        await self._client.close()

    # Cards, replies and what else is sent.

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:
        return card_text.concerns_every_change(card, last)

    def shows_whole(self, card: Card) -> bool:
        return card_text.shows_whole(card, blocks.fit_card)

    async def send(self, outgoing: Outgoing) -> Sent:
        match outgoing.content:
            case Card() as card:
                return await self._send_card(outgoing, card)
            case ChatReply() as reply:
                return await self._send_reply(outgoing, reply)
            case notify_model.Invitation() | notify_model.Alert() as notice:
                return await self._send_lines(outgoing, card_text.short_lines(notice, outgoing.timestamp), notice.url)
        raise Undeliverable("Slack carries requests, replies, invitations and alerts, and nothing else.")

    async def _send_card(self, outgoing: Outgoing, card: Card) -> Sent:
        lines, is_whole = blocks.fit_card(card_text.card_lines(card, outgoing.timestamp))
        buttons = [
            button
            for button in card.buttons
            if card.status is ApprovalStatus.PENDING
            and (is_whole or button.action is not channels.ButtonAction.APPROVE)
        ]
        heading = f"{card_text.card_heading(card)}: {card.subject}"
        content = {"text": blocks.fallback(heading), "blocks": blocks.card_blocks(lines, buttons, card.url)}
        shown = {"status": card.status.value}
        earlier = events.read_ref(outgoing.earlier)
        if earlier is not None:
            channel, ts = earlier
            answer = await self._api.call(outgoing.target, "chat.update", channel=channel, ts=ts, **content)
            if answer.error not in NO_MESSAGE_TO_EDIT:
                answer.require()
                await self._send_note(outgoing, card, channel, ts)
                return Sent(message_ref=outgoing.earlier, shown=shown)
        return Sent(message_ref=await self._post(outgoing.target, outgoing.target.address, content), shown=shown)

    async def _send_note(self, outgoing: Outgoing, card: Card, channel: str, first: str) -> None:
        """Says under the first message why it is worth another look."""
        if card.status is not ApprovalStatus.PENDING or card.occasion not in THREAD_NOTES:
            return
        heading = f"{card_text.card_heading(card, is_first=False)}: {card_text.one_line(card.subject, 300)}"
        content = {"text": blocks.fallback(heading), "blocks": [_plain_block(heading)]}
        await self._post(outgoing.target, channel, {**content, "thread_ts": first, "reply_broadcast": True})

    async def _send_lines(self, outgoing: Outgoing, lines: Sequence[card_text.CardLine], url: str) -> Sent:
        fitting, _ = blocks.fit_card(lines)
        heading = f"{lines[0].label}: {lines[0].text}"
        content = {"text": blocks.fallback(heading), "blocks": blocks.lines_blocks(fitting, url)}
        return Sent(message_ref=await self._post(outgoing.target, outgoing.target.address, content))

    async def _send_reply(self, outgoing: Outgoing, reply: ChatReply) -> Sent:
        target, thread = outgoing.target, {"thread_ts": reply.thread} if reply.thread else {}

        async def send_part(text: str, ref: str | None) -> str | None:
            content = {"text": blocks.fallback(text), "blocks": blocks.reply_blocks(text)}
            earlier = events.read_ref(ref)
            if earlier is not None:
                answer = await self._api.call(target, "chat.update", channel=earlier[0], ts=earlier[1], **content)
                if answer.error not in NO_MESSAGE_TO_EDIT:
                    answer.require()
                    return ref
            return await self._post(target, target.address, {**content, **thread})

        texts = card_text.chunks(visible_text(reply.text), blocks.REPLY_LIMIT)
        return await send_next_part(outgoing, texts, send_part)

    async def _post(self, target: Target, address: str, content: Mapping[str, Any]) -> str:
        channel = await self._chat(target, address)
        answer = await self._api.call(target, "chat.postMessage", channel=channel, **_QUIET, **content)
        body = answer.require()
        return f"{body['channel']}:{body['ts']}"

    async def _chat(self, target: Target, address: str) -> str:
        """The channel of an address: the direct messages of a person, or a channel as it is."""
        if address[:1] not in ("U", "W"):
            return address
        key = (target.connection_id, address)
        if key not in self._chats:
            body = (await self._api.call(target, "conversations.open", users=address)).require()
            self._chats[key] = str(body["channel"]["id"])
            if len(self._chats) > MOST_CHATS:
                self._chats.popitem(last=False)
        return self._chats[key]

    # The connection.

    async def identify(self, target: Target, inbound_url: str | None) -> channels.ConnectionIdentity:
        """Slack lets nobody but a person set up an app: what to paste is in ``to_do``."""
        answer = await self._ask_who(target)
        me = answer.body
        if not me.get("bot_id"):
            raise InvalidInput("This is no token of a bot: take the one that begins with xoxb-.", field="bot_token")
        mode = str(target.config.get("mode") or ("socket" if target.secrets.get("app_token") else "http"))
        to_do = []
        if mode == "socket":
            await self._check_socket(target)
            to_do.append(_paste(app_manifest("Cortex", None)))
        else:
            if not target.secrets.get("signing_secret"):
                raise InvalidInput(
                    "Slack signs what it posts: the `signing_secret` is missing.", field="signing_secret"
                )
            if inbound_url is not None:
                to_do.append(_paste(app_manifest("Cortex", inbound_url)))
        if missing := missing_scopes(answer.headers.get("x-oauth-scopes", "")):
            to_do.append(f"Install the app again, so that it gets the scopes {', '.join(missing)}.")
        return channels.ConnectionIdentity(
            account=f"@{me.get('user')} in {me.get('team')}",
            external_id=f"{me.get('team_id')}:{me.get('bot_id')}",
            config={
                "mode": mode, "team_id": str(me.get("team_id")), "bot_user_id": str(me.get("user_id")),
                "bot_id": str(me.get("bot_id")),
            },
            to_do=tuple(to_do),
        )  # fmt: skip

    async def _ask_who(self, target: Target) -> SlackAnswer:
        try:
            answer = await self._api.call(target, "auth.test")
        except Undeliverable as error:
            raise InvalidInput(error.message, field="api_url") from None
        try:
            answer.require()
        except Undeliverable as error:
            raise InvalidInput(error.message, field="bot_token") from None
        return answer

    async def _check_socket(self, target: Target) -> None:
        require_websockets("slack")
        try:
            (await self._api.open_socket(target)).require()
        except Undeliverable as error:
            raise InvalidInput(
                error.message,
                hint="Create an App-Level Token with the scope connections:write, and turn Socket Mode on.", field="app_token",
            ) from None  # fmt: skip

    def receive(self, target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
        return events.read_request(target, request)

    def read(self, payload: Mapping[str, Any]) -> channels.InboundEvent | channels.ConnectionRevoked | None:
        return events.read_payload(payload)

    async def listen(self, target: Target, cursor: str | None, deliver: channels.Deliver) -> None:
        """Socket Mode, in which Slack keeps nothing while nobody is connected, or over HTTP the history alone: events are posted then. What
        people wrote while the plane was away is read from the history. The cursor is when somebody began to listen, because what is older
        was written to nobody, or, over HTTP, until when all has arrived."""
        if target.config.get("mode") == "http":
            await history.watch(self._api, target, None if cursor is None else float(cursor), deliver)
            return
        require_websockets("slack")
        now = time.time()
        if cursor is None:
            await deliver((), f"{now:.6f}")
        since = None if cursor is None else max(float(cursor), now - history.MOST_SECONDS)
        await socket_mode.listen(self._client, self._api, target, since, deliver)

    # Answers.

    async def answer(self, target: Target, event: channels.InboundEvent, answer: channels.InboundAnswer) -> str | None:
        if answer.ask_for is not None and isinstance(event, channels.ButtonPress):
            await self._open_form(target, event, answer.ask_for, answer.text)
        else:
            await self._whisper(target, event, answer.text)
        return None

    async def _open_form(self, target: Target, press: channels.ButtonPress, data: str, prompt: str) -> None:
        button = channels.read_button(data)
        action = button.action if button else channels.ButtonAction.DENY
        metadata = {
            "data": data,
            "ref": press.message_ref or "",
            "channel": press.answer_to.get("channel", ""),
            "response_url": press.answer_to.get("response_url", ""),
        }
        view = blocks.words_form(action, prompt, metadata)
        trigger = press.answer_to.get("trigger_id", "")
        answer = await self._api.call(target, "views.open", trigger_id=trigger, view=view)
        if answer.error in TOO_LATE:
            await self._whisper(target, press, _TOO_SLOW)
        else:
            answer.require()

    async def _whisper(self, target: Target, event: channels.InboundEvent, text: str) -> None:
        """To the person alone."""
        for part in card_text.chunks(text, blocks.REPLY_LIMIT):
            content = {"text": blocks.fallback(part), "blocks": [_plain_block(part)]}
            url = event.answer_to.get("response_url", "")
            if url and await self._api.respond(
                url, {"response_type": "ephemeral", "replace_original": False, **content}
            ):
                continue
            channel, thread = event.answer_to.get("channel") or event.chat.id, event.answer_to.get("thread") or None
            if event.chat.is_private:
                await self._post(target, event.chat.id, {**content, **({"thread_ts": thread} if thread else {})})
                continue
            answer = await self._api.call(
                target, "chat.postEphemeral", channel=channel, user=event.sender.id, thread_ts=thread, **content
            )
            answer.require()


def _paste(manifest: str) -> str:
    return f"Paste this under *App Manifest* of the app at https://api.slack.com/apps, and save it:\n{manifest}"


def _plain_block(text: str) -> blocks.Block:
    return blocks.rich_text([blocks.section([{"type": "text", "text": text or "…"}])])
