"""Discord: cards in direct messages and channels, presses and forms, and conversation by messages and `/cortex`.

People act over interactions, which Discord posts to the plane or sends over its Gateway. What they write comes over the Gateway alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.activity_pace import ActivityPace
from cortex_plane.channels.card_text import chunks, concerns_every_change, shows_whole
from cortex_plane.channels.discord import cards, interactions, messages
from cortex_plane.channels.discord.api import API, INVALID_FORM, UNKNOWN_MESSAGE, DiscordApi
from cortex_plane.channels.discord.gateway import PAUSE_SECONDS, DiscordGateway
from cortex_plane.channels.reply_parts import send_next_part, sent_parts
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.vendor_socket import require_websockets
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.channels import (
    ChannelTraits,
    ChatMessage,
    ConnectionField,
    ConnectionIdentity,
    Deliver,
    InboundAnswer,
    InboundEvent,
    InboundRequest,
    ReasonInput,
    ReceivedRequest,
)
from cortex_plane.notify.model.notifications import (
    Alert,
    Card,
    ChatReply,
    Outgoing,
    Sent,
    Target,
    TryAgain,
    Undeliverable,
)

_SHARED = "#"
"""Before the id of a channel, in an address. Without it an address is the id of a person."""
_MOST_CHATS = 10_000
TYPING_SECONDS = 9.0
"""Discord shows it for ten."""
TYPING_PER_SECOND = 10
"""Of the 50 requests that Discord takes: a fifth."""


class DiscordChannel:
    channel_type = "discord"
    carries_credentials = False
    """Messages stay in a history that others may come to read."""
    traits = ChannelTraits(
        most_buttons=4,
        edits=True,
        threads=True,
        conversations=True,
        reason=ReasonInput.FORM,
        text_limit=cards.MAX_TEXT,
        per_second=25.0,  # a first message takes two requests, of the 50 that Discord takes
        chat_seconds=1.0,
        listens=True,
        stream_seconds=2.0,
        streams_per_second=10.0,
    )
    fields: Sequence[ConnectionField] = (
        ConnectionField(
            name="bot_token", description="Developer Portal → your application → Bot → Reset Token.", secret=True,
            pattern=r"[A-Za-z0-9._-]{20,200}",
        ),
        ConnectionField(
            name="mode", required=False, choices=("http", "gateway"),
            description="`http`: people press buttons and use `/cortex`, and Discord posts that to the public https address of the plane. "
            "`gateway`: people also write plain messages, over a connection that the plane opens; it needs no public address. "
            "Without it: http where the plane has such an address.",
        ),
        ConnectionField(
            name="api_url", description=f"Another address of the API than {API}.",
            required=False, pattern=r"https?://\S{1,500}",
        ),
    )  # fmt: skip

    def __init__(
        self,
        client: VendorClient,
        ticks: Callable[[], float] = time.monotonic,
        *,
        pause_seconds: tuple[float, float] = PAUSE_SECONDS,
    ) -> None:
        """``ticks``: the clock of the limits that Discord announces. ``pause_seconds``: before a session of the Gateway that Discord
        did not know is followed by another one."""
        self._client = client
        self._api = DiscordApi(client, ticks)
        self._gateway = DiscordGateway(client, self._api, pause_seconds=pause_seconds)
        self._pace = ActivityPace(chat_seconds=TYPING_SECONDS, per_second=TYPING_PER_SECOND)
        self._chats: dict[tuple[str, str], str] = {}

    async def close(self) -> None:
        await self._client.close()

    def shows_whole(self, card: Card) -> bool:
        return shows_whole(card, cards.fit_card)

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:
        return concerns_every_change(card, last)

    async def identify(self, target: Target, inbound_url: str | None) -> ConnectionIdentity:
        """Where the plane has a public address, interactions are posted there in both modes: any process answers them then, and while the
        Gateway has a new owner none is lost. An application that has such an address gets them nowhere else."""
        mode = str(target.config.get("mode") or ("gateway" if inbound_url is None else "http"))
        if mode == "gateway":
            require_websockets("discord")
        try:
            application = await self._api.call(target, "GET", "/applications/@me")
            bot = await self._api.call(target, "GET", "/users/@me")
        except Undeliverable as error:
            if error.gone:
                raise InvalidInput("Discord does not accept this token.", field="secrets.bot_token") from None
            raise InvalidInput(error.message, field="config.api_url") from None
        try:
            id, public_key = str(application["id"]), str(application["verify_key"])
            config = {"mode": mode, "application_id": id, "public_key": public_key, "bot_id": str(bot["id"])}
            account = f"@{bot['username']}"
        except (KeyError, TypeError):
            raise InvalidInput(
                "The server at this address does not answer as Discord does.", field="config.api_url"
            ) from None
        if mode == "gateway":
            await self._gateway.find(target, is_new=False)
        await self._api.call(target, "PUT", f"/applications/{id}/commands", interactions.commands())
        # Discord calls the address before it takes it, and the plane can answer only for a connection that is stored.
        is_unfinished = inbound_url is not None and target.config.get("public_key") != public_key
        to_do = [] if is_unfinished else await self._set_endpoint(target, application, inbound_url, mode)
        if is_unfinished:
            to_do.append("Check this connection: Discord verifies the address for interactions then.")
        to_do += _invite(application, id)
        return ConnectionIdentity(
            account=account, external_id=id, config=config, to_do=tuple(to_do), is_unfinished=is_unfinished
        )

    async def _set_endpoint(
        self, target: Target, application: Mapping[str, Any], inbound_url: str | None, mode: str
    ) -> list[str]:
        """What is left to do for the address to which Discord posts interactions."""
        current = application.get("interactions_endpoint_url")
        if inbound_url is None and mode == "gateway":
            await self._clear_endpoint(target, current)
            return []
        if inbound_url is None:
            reach = "Give the plane an https address that Discord can reach (CORTEX_PUBLIC_URL), then check this connection again"
            return [f"{reach}; or use `mode` gateway."]
        if current == inbound_url:
            return []
        try:
            await self._api.call(target, "PATCH", "/applications/@me", {"interactions_endpoint_url": inbound_url})
        except Undeliverable as error:
            if error.vendor_code != INVALID_FORM:
                raise
            if mode == "gateway":
                await self._clear_endpoint(target, current)
                hint = "Make it reachable from the internet and check again, so that none is lost while a process is replaced."
                return [f"Discord could not verify {inbound_url}, and sends presses over the Gateway. {hint}"]
            place = "the Developer Portal → General Information → Interactions Endpoint URL"
            return [
                f"Discord could not verify {inbound_url}. Make it reachable from the internet and check again, or enter it in {place}."
            ]
        return []

    async def _clear_endpoint(self, target: Target, current: Any) -> None:
        """So that interactions come over the Gateway."""
        if current:
            await self._api.call(target, "PATCH", "/applications/@me", {"interactions_endpoint_url": None})

    def receive(self, target: Target, request: InboundRequest) -> ReceivedRequest:
        return interactions.receive(str(target.config.get("public_key", "")), request)

    def read(self, payload: Mapping[str, Any]) -> InboundEvent | None:
        return messages.read_message(payload) if payload["type"] == messages.MESSAGE else interactions.read(payload)

    async def answer(self, target: Target, event: InboundEvent, answer: InboundAnswer) -> str | None:
        to = event.answer_to
        if "message_id" in to:
            await self._answer_message(target, to, answer)
            return None
        first, *rest = chunks(cards.escape(interactions.as_typed(answer.text)), cards.MAX_TEXT) or ("Done.",)
        path = f"/webhooks/{to.get('application_id')}/{to.get('token')}"
        private = {"flags": interactions.EPHEMERAL | cards.SUPPRESS_EMBEDS}
        if to.get("deferred") == str(interactions.MESSAGE_LATER):
            # The message that says "thinking"; it is as private as it was begun.
            await self._api.answer(target, "PATCH", f"{path}/messages/@original", cards.text_message(first))
        else:
            rest = [first, *rest]
        for text in rest:
            await self._api.answer(target, "POST", path, cards.text_message(text) | private)
        return None

    async def _answer_message(self, target: Target, to: Mapping[str, str], answer: InboundAnswer) -> None:
        """Under what somebody wrote: only interactions can be answered to their person alone."""
        channel, id = to["channel_id"], to["message_id"]
        for part, text in enumerate(chunks(cards.escape(interactions.as_typed(answer.text)), cards.MAX_TEXT)):
            message = cards.text_message(text) | messages.under(id) | messages.nonce(f"{id}.{part}.{text}")
            await self._api.call(target, "POST", f"/channels/{channel}/messages", message)

    async def show_activity(self, target: Target, event: ChatMessage) -> None:
        to = event.answer_to
        if "token" in to:
            # Else Discord says for a quarter of an hour that the bot thinks, and then that it does not respond.
            original = f"/webhooks/{to.get('application_id')}/{to['token']}/messages/@original"
            await self._api.answer(target, "PATCH", original, cards.text_message("The agent has it."))
        if not self._pace.take(target.connection_id, event.chat.id):
            return
        try:
            await self._api.call(target, "POST", f"/channels/{event.chat.id}/typing")
        except TryAgain as error:
            self._pace.pause(target.connection_id, error.after_seconds)
            raise

    async def listen(self, target: Target, cursor: str | None, deliver: Deliver) -> None:
        require_websockets("discord")
        await self._gateway.listen(target, cursor, deliver)

    async def send(self, outgoing: Outgoing) -> Sent:
        match outgoing.content:
            case Card() as card:
                return await self._send_card(outgoing, card)
            case ChatReply() as reply:
                return await self._send_reply(outgoing, reply)
            case Alert() as alert:
                channel = await self._channel(outgoing.target)
                return Sent(
                    message_ref=await self._post(outgoing, channel, cards.alert_message(alert, outgoing.timestamp))
                )
        raise Undeliverable("Discord carries requests, replies and alerts, and nothing else.")

    async def _send_card(self, outgoing: Outgoing, card: Card) -> Sent:
        message = cards.card_message(card, outgoing.timestamp, is_first=outgoing.earlier is None)
        shown = {"status": card.status.value, "version": card.version, "input_hash": card.input_hash}
        if outgoing.earlier is not None and await self._edit(outgoing.target, outgoing.earlier, message):
            if cards.calls_again(card, outgoing.shown.get("input_hash")):
                channel, id = _split(outgoing.earlier)
                await self._post(outgoing, channel, cards.reminder_message(card, outgoing.timestamp, id))
            return Sent(message_ref=outgoing.earlier, shown=shown)
        if outgoing.earlier is not None and card.status is not ApprovalStatus.PENDING:
            return Sent(message_ref=outgoing.earlier, shown=shown)  # its person deleted it
        channel = await self._channel(outgoing.target)
        return Sent(message_ref=await self._post(outgoing, channel, message), shown=shown)

    async def _send_reply(self, outgoing: Outgoing, reply: ChatReply) -> Sent:
        channel = outgoing.target.address.removeprefix(_SHARED)
        refs = [ref for ref, _ in sent_parts(outgoing)]

        async def send_part(text: str, ref: str | None) -> str:
            part = len(refs) if ref is None else refs.index(ref)
            message = cards.text_message(text)
            place = messages.under(reply.thread) if reply.thread and part == 0 else {}
            if ref is not None:
                is_there = await self._edit(outgoing.target, ref, message)
                return ref if is_there else await self._post(outgoing, channel, message | place, f"again.{part}")
            # The same for all versions: a part that was sent by somebody who died is found, whatever it said then.
            vendor_message = await self._post_once(outgoing, channel, message | place, f"{outgoing.id}.part.{part}")
            ref = f"{channel}:{vendor_message['id']}"
            if str(vendor_message.get("content", text)).strip() != text.strip():
                await self._edit(outgoing.target, ref, message)
            return ref

        receipt = await send_next_part(outgoing, chunks(cards.MARKUP.reply(reply.text), cards.MAX_TEXT), send_part)
        if not reply.is_final:
            with contextlib.suppress(TryAgain, Undeliverable):  # the reply has arrived
                await self._api.call(outgoing.target, "POST", f"/channels/{channel}/typing")
        return receipt

    async def _channel(self, target: Target) -> str:
        """The channel of an address: a shared one, or the direct one with a person."""
        if target.address.startswith(_SHARED):
            return target.address.removeprefix(_SHARED)
        key = (str(target.connection_id), target.address)
        if key not in self._chats:
            if not target.address.isdecimal():
                raise Undeliverable(f"{target.address!r} is no id of a person on Discord.", address=True)
            channel = await self._api.call(target, "POST", "/users/@me/channels", {"recipient_id": target.address})
            if len(self._chats) >= _MOST_CHATS:
                self._chats.clear()
            self._chats[key] = str(channel["id"])
        return self._chats[key]

    async def _post(self, outgoing: Outgoing, channel: str, message: Mapping[str, Any], kind: str = "") -> str:
        kind = kind or ("reply" if "message_reference" in message else "message")
        vendor_message = await self._post_once(outgoing, channel, message, f"{outgoing.id}.{outgoing.version}.{kind}")
        return f"{channel}:{vendor_message['id']}"

    async def _post_once(
        self, outgoing: Outgoing, channel: str, message: Mapping[str, Any], key: str
    ) -> Mapping[str, Any]:
        """The same key again within some minutes is not sent twice: Discord knows it by its nonce, and returns the message that it has."""
        content = {**message, **messages.nonce(key)}
        vendor_message: Mapping[str, Any] = await self._api.call(
            outgoing.target, "POST", f"/channels/{channel}/messages", content
        )
        return vendor_message

    async def _edit(self, target: Target, message_ref: str, message: Mapping[str, Any]) -> bool:
        """Whether it is still there."""
        channel, id = _split(message_ref)
        try:
            await self._api.call(target, "PATCH", f"/channels/{channel}/messages/{id}", dict(message))
        except Undeliverable as error:
            if error.vendor_code != UNKNOWN_MESSAGE:
                raise
            return False
        return True


def _split(message_ref: str) -> tuple[str, str]:
    channel, _, id = message_ref.partition(":")
    return channel, id


def _invite(application: Mapping[str, Any], id: str) -> list[str]:
    if application.get("approximate_guild_count"):
        return []
    return [
        (
            "Add the bot to a server that its people share, or they cannot be reached:"
            f" https://discord.com/oauth2/authorize?client_id={id}&scope=bot+applications.commands&permissions=2048"
        )
    ]
