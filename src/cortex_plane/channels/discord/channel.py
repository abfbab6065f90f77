"""Discord: cards in direct messages and channels, presses and forms, and conversation by `/cortex`."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.card_text import chunks, concerns_every_change, shows_whole
from cortex_plane.channels.discord import cards, interactions
from cortex_plane.channels.discord.api import API, INVALID_FORM, UNKNOWN_MESSAGE, DiscordApi
from cortex_plane.channels.reply_parts import send_next_part, sent_parts
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.channels import (
    ChannelTraits,
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
        stream_seconds=2.0,
        streams_per_second=10.0,
    )
    fields: Sequence[ConnectionField] = (
        ConnectionField(
            name="bot_token", description="Developer Portal → your application → Bot → Reset Token.", secret=True,
            pattern=r"[A-Za-z0-9._-]{20,200}",
        ),
        ConnectionField(
            name="api_url", description=f"Another address of the API than {API}.",
            required=False, pattern=r"https?://\S{1,500}",
        ),
    )  # fmt: skip

    def __init__(self, client: VendorClient) -> None:
        self._client = client
        self._api = DiscordApi(client)
        self._chats: dict[tuple[str, str], str] = {}

    async def close(self) -> None:
        await self._client.close()

    def shows_whole(self, card: Card) -> bool:
        return shows_whole(card, cards.fit_card)

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:
        return concerns_every_change(card, last)

    async def identify(self, target: Target, inbound_url: str | None) -> ConnectionIdentity:
        try:
            application = await self._api.call(target, "GET", "/applications/@me")
            bot = await self._api.call(target, "GET", "/users/@me")
        except Undeliverable as error:
            if error.gone:
                raise InvalidInput("Discord does not accept this token.", field="secrets.bot_token") from None
            raise InvalidInput(error.message, field="config.api_url") from None
        try:
            id, public_key = str(application["id"]), str(application["verify_key"])
            config = {"application_id": id, "public_key": public_key, "bot_id": str(bot["id"])}
            account = f"@{bot['username']}"
        except (KeyError, TypeError):
            raise InvalidInput(
                "The server at this address does not answer as Discord does.", field="config.api_url"
            ) from None
        await self._api.call(target, "PUT", f"/applications/{id}/commands", interactions.commands())
        # Discord calls the address before it takes it, and the plane can answer only for a connection that is stored.
        is_unfinished = inbound_url is not None and target.config.get("public_key") != public_key
        to_do = [] if is_unfinished else await self._set_endpoint(target, application, inbound_url)
        if is_unfinished:
            to_do.append("Check this connection: Discord verifies the address for interactions then.")
        to_do += _invite(application, id)
        return ConnectionIdentity(
            account=account, external_id=id, config=config, to_do=tuple(to_do), is_unfinished=is_unfinished
        )

    async def _set_endpoint(self, target: Target, application: Mapping[str, Any], inbound_url: str | None) -> list[str]:
        """What is left to do for the address to which Discord posts interactions."""
        if inbound_url is None:
            return [
                "Give the plane an https address that Discord can reach (CORTEX_PUBLIC_URL), then check this connection again."
            ]
        if application.get("interactions_endpoint_url") == inbound_url:
            return []
        try:
            await self._api.call(target, "PATCH", "/applications/@me", {"interactions_endpoint_url": inbound_url})
        except Undeliverable as error:
            if error.vendor_code != INVALID_FORM:
                raise
            place = "the Developer Portal → General Information → Interactions Endpoint URL"
            return [
                f"Discord could not verify {inbound_url}. Make it reachable from the internet and check again, or enter it in {place}."
            ]
        return []

    def receive(self, target: Target, request: InboundRequest) -> ReceivedRequest:
        return interactions.receive(str(target.config.get("public_key", "")), request)

    def read(self, payload: Mapping[str, Any]) -> InboundEvent | None:
        return interactions.read(payload)

    async def answer(self, target: Target, event: InboundEvent, answer: InboundAnswer) -> str | None:
        to = event.answer_to
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

    async def listen(self, target: Target, cursor: str | None, deliver: Deliver) -> None:  # noqa: ARG002 -- the port
        raise InvalidInput("Discord posts what people do; nothing can be fetched from it.")

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

        async def send_part(text: str, ref: str | None) -> str:
            message = cards.text_message(text)
            if ref is not None:
                is_there = await self._edit(outgoing.target, ref, message)
                return ref if is_there else await self._post(outgoing, channel, message, "again")
            # The same for all versions: a part that was sent by somebody who died is found, whatever it said then.
            sent = await self._post_once(outgoing, channel, message, f"{outgoing.id}.part.{len(sent_parts(outgoing))}")
            ref = f"{channel}:{sent['id']}"
            if str(sent.get("content", text)).strip() != text.strip():
                await self._edit(outgoing.target, ref, message)
            return ref

        sent = await send_next_part(outgoing, chunks(cards.MARKUP.reply(reply.text), cards.MAX_TEXT), send_part)
        if not reply.is_final:
            with contextlib.suppress(TryAgain, Undeliverable):  # the reply has arrived
                await self._api.call(outgoing.target, "POST", f"/channels/{channel}/typing")
        return sent

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
        sent = await self._post_once(outgoing, channel, message, f"{outgoing.id}.{outgoing.version}.{kind}")
        return f"{channel}:{sent['id']}"

    async def _post_once(
        self, outgoing: Outgoing, channel: str, message: Mapping[str, Any], key: str
    ) -> Mapping[str, Any]:
        """The same key again within some minutes is not sent twice: Discord knows it by its nonce, and returns the message that it has."""
        digest = hashlib.sha256(key.encode()).digest()
        unique = {"nonce": base64.urlsafe_b64encode(digest[:18]).decode(), "enforce_nonce": True}
        sent: Mapping[str, Any] = await self._api.call(
            outgoing.target, "POST", f"/channels/{channel}/messages", {**message, **unique}
        )
        return sent

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
