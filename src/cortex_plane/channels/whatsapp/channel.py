"""WhatsApp: cards with buttons, words as replies, and conversation. A message cannot be edited: what follows quotes the first one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.activity_pace import ActivityPace
from cortex_plane.channels.card_text import chunks, shows_whole
from cortex_plane.channels.reply_parts import send_next_part
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.whatsapp import cards, webhooks
from cortex_plane.channels.whatsapp.api import API, INVALID_PARAMETER, WINDOW_CLOSED, GraphApi
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.channels import (
    ButtonPress,
    ChannelTraits,
    ChatMessage,
    ConnectionField,
    ConnectionIdentity,
    ConnectionRevoked,
    Deliver,
    DeliveryReport,
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
    Occasion,
    Outgoing,
    Sent,
    Target,
    TryAgain,
    Undeliverable,
)

_TEMPLATE = "template"
_TYPING_SECONDS = 25.0
"""So long WhatsApp shows it."""
_TYPING_PER_SECOND = 20


class WhatsAppChannel:
    channel_type = "whatsapp"
    carries_credentials = False
    """Messages stay on phones that others may hold."""
    traits = ChannelTraits(
        most_buttons=cards.MOST_BUTTONS - 1,  # the last one is More
        threads=True,
        conversations=True,
        reason=ReasonInput.REPLY,
        text_limit=cards.MAX_TEXT,
        per_second=80.0,
        # Bursts to one person are allowed; WhatsApp says when it is too much (131056).
    )
    fields: Sequence[ConnectionField] = (
        ConnectionField(
            name="phone_number_id", description="Meta App Dashboard → WhatsApp → API Setup → Phone number ID.",
            pattern=r"[0-9]{5,30}",
        ),
        ConnectionField(
            name="access_token", secret=True, pattern=r"[A-Za-z0-9|_-]{20,1000}",
            description="Of a system user with the permissions whatsapp_business_messaging and whatsapp_business_management.",
        ),
        ConnectionField(
            name="app_secret", description="Meta App Dashboard → App settings → Basic → App secret.", secret=True,
            pattern=r"[0-9a-f]{32,64}",
        ),
        ConnectionField(
            name="template", required=False, pattern=r"[a-z0-9_]{1,512}",
            description="The approved template for people who last wrote more than 24 hours ago.",
        ),
        ConnectionField(
            name="template_language", description="Its language: en_US where nothing is said.", required=False,
            pattern=r"[a-z]{2,3}(_[A-Z]{2})?",
        ),
        ConnectionField(
            name="first_message", required=False, choices=("buttons", _TEMPLATE),
            description="How a request begins: with its buttons, or always with the template, which also reaches people who have not"
            " written lately.",
        ),
        ConnectionField(
            name="api_url", description=f"Another address of the API than {API}.", required=False,
            pattern=r"https?://\S{1,500}",
        ),
    )  # fmt: skip

    def __init__(self, client: VendorClient) -> None:
        self._client = client
        self._api = GraphApi(client)
        self._pace = ActivityPace(chat_seconds=_TYPING_SECONDS, per_second=_TYPING_PER_SECOND)

    async def close(self) -> None:
        await self._client.close()

    def shows_whole(self, card: Card) -> bool:
        return shows_whole(card, lambda lines: cards.fit_card(lines, card.url))

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:
        """What a person must know: nobody wants a message for every vote."""
        if not last:
            return card.status is ApprovalStatus.PENDING
        if card.status is not ApprovalStatus.PENDING:
            return bool(last.get("status") != card.status.value)
        is_changed = (card.version, card.input_hash) != (last.get("version"), last.get("input_hash"))
        return is_changed or card.escalation_level > last.get("level", 0) or card.occasion is Occasion.REMINDED

    async def identify(self, target: Target, inbound_url: str | None) -> ConnectionIdentity:
        if target.config.get("first_message") == _TEMPLATE and not target.config.get("template"):
            raise InvalidInput("To begin with a template, name one.", field="config.template")
        try:
            number = await self._api.get_number(target)
        except Undeliverable as error:
            raise _wrong_field(error) from None
        id, display = str(number.get("id", "")), number.get("display_phone_number")
        if id != str(target.config.get("phone_number_id")) or not isinstance(display, str):
            raise InvalidInput("The server at this address does not answer as WhatsApp does.", field="config.api_url")
        verify_token = target.secrets.get("verify_token") or secrets.token_urlsafe(24)
        name, business = number.get("verified_name"), _business_account(number)
        return ConnectionIdentity(
            account=f"{display} ({name})" if name else display,
            external_id=id,
            config={} if business is None else {"business_account": business},
            secrets={"verify_token": verify_token},
            to_do=_to_do(number, inbound_url, verify_token),
        )

    def receive(self, target: Target, request: InboundRequest) -> ReceivedRequest:
        return webhooks.receive(target, request)

    def read(self, payload: Mapping[str, Any]) -> InboundEvent | DeliveryReport | ConnectionRevoked | None:
        return webhooks.read(payload)

    async def answer(self, target: Target, event: InboundEvent, answer: InboundAnswer) -> str | None:
        """Below a quote of what they did. The last message is the one to reply to."""
        ref = None
        for text in chunks(cards.escape(answer.text), cards.MAX_TEXT):
            ref = await self._answer(target, event, text)
        return ref if answer.ask_for is not None else None

    async def show_more(self, target: Target, event: ButtonPress, card: Card) -> None:
        """All of a request. Its buttons as well, where they were not there yet."""
        now = datetime.now(UTC)
        for text in cards.whole_card(card, now):
            await self._answer(target, event, text)
        if card.buttons and event.answer_to.get(_TEMPLATE):
            button = card.buttons[0]
            message = cards.card_message(card, button.notification_id, now, is_first=True)
            await self._api.send(target, event.chat.id, message)

    async def _answer(self, target: Target, event: InboundEvent, text: str) -> str | None:
        try:
            quote = event.answer_to.get("message_id")
            return await self._api.send(target, event.chat.id, cards.text_message(text), quote=quote)
        except Undeliverable as error:
            if error.vendor_code != WINDOW_CLOSED:
                raise
            return None  # what they did is longer ago than a day

    async def show_activity(self, target: Target, event: ChatMessage) -> None:
        """In private chats: WhatsApp has no such thing in groups."""
        message_id = event.answer_to.get("message_id")
        if not event.chat.is_private or not message_id or not self._pace.take(target.connection_id, event.chat.id):
            return
        try:
            await self._api.show_typing(target, message_id)
        except TryAgain as error:
            self._pace.pause(target.connection_id, error.after_seconds)
            raise

    async def listen(self, target: Target, cursor: str | None, deliver: Deliver) -> None:  # noqa: ARG002 -- the port
        raise InvalidInput("WhatsApp posts what people do; nothing can be fetched from it.")

    async def send(self, outgoing: Outgoing) -> Sent:
        match outgoing.content:
            case Card() as card if cards.is_over(card):
                return await self._send_outcome(outgoing, card)
            case Card() as card:
                return await self._send_card(outgoing, card)
            case ChatReply() as reply:
                return await self._send_reply(outgoing, reply)
            case Alert() as alert:
                text = cards.text_message(cards.alert_text(alert, outgoing.timestamp))
                return Sent(message_ref=await self._api.send(outgoing.target, outgoing.target.address, text))
        raise Undeliverable("WhatsApp carries requests, replies and alerts, and nothing else.")

    async def _send_card(self, outgoing: Outgoing, card: Card) -> Sent:
        """Each quotes the one before it, so that the last one that can be pressed is the one that the outcome quotes."""
        target, before = outgoing.target, outgoing.earlier
        if before is not None and not self.concerns(card, outgoing.shown):
            return Sent(message_ref=before, shown=outgoing.shown)
        template = _template(outgoing, card)
        message = cards.card_message(card, outgoing.id, outgoing.timestamp, is_first=before is None)
        form = "buttons"
        if template is not None and before is None and target.config.get("first_message") == _TEMPLATE:
            message, form = template, _TEMPLATE
        try:
            ref = await self._api.send(target, target.address, message, quote=before)
        except Undeliverable as error:
            if error.vendor_code != WINDOW_CLOSED or template is None:
                raise
            ref, form = await self._api.send(target, target.address, template), _TEMPLATE
        return Sent(message_ref=ref, shown=_shown(card, form))

    async def _send_outcome(self, outgoing: Outgoing, card: Card) -> Sent:
        """It quotes the last card, whose buttons cannot be taken back: a press of them is answered."""
        target, card_ref = outgoing.target, outgoing.earlier
        form = outgoing.shown.get("form", "buttons")
        message = cards.text_message(cards.outcome_text(card, outgoing.timestamp))
        try:
            ref: str | None = await self._api.send(target, target.address, message, quote=card_ref)
        except Undeliverable as error:
            # A template has no button that decides, and its link leads to the outcome.
            if error.vendor_code != WINDOW_CLOSED or form != _TEMPLATE:
                raise
            ref = None
        return Sent(message_ref=card_ref or ref, shown=_shown(card, form))

    async def _send_reply(self, outgoing: Outgoing, reply: ChatReply) -> Sent:
        async def send_part(text: str, _: str | None) -> str:
            return await self._api.send(outgoing.target, outgoing.target.address, cards.text_message(text))

        return await send_next_part(outgoing, chunks(cards.MARKUP.reply(reply.text), cards.MAX_TEXT), send_part)


def _shown(card: Card, form: str) -> dict[str, Any]:
    state = {"version": card.version, "input_hash": card.input_hash, "level": card.escalation_level}
    return {"status": card.status.value, "form": form, **state}


def _template(outgoing: Outgoing, card: Card) -> dict[str, Any] | None:
    config = outgoing.target.config
    if not config.get(_TEMPLATE):
        return None
    language = str(config.get("template_language") or "en_US")
    return cards.template_message(str(config[_TEMPLATE]), language, card, outgoing.id)


def _wrong_field(error: Undeliverable) -> InvalidInput:
    if error.gone:
        return InvalidInput("WhatsApp does not accept this token.", field="secrets.access_token")
    if error.vendor_code == INVALID_PARAMETER and "appsecret_proof" in error.message:
        return InvalidInput("This is not the secret of the app that the token belongs to.", field="secrets.app_secret")
    return InvalidInput(
        f"WhatsApp does not know this number, or the token may not see it. {error.message}",
        field="config.phone_number_id",
    )


def _business_account(number: Mapping[str, Any]) -> str | None:
    """The business account that the number belongs to. An app may serve several."""
    health = number.get("health_status")
    entities = health.get("entities", ()) if isinstance(health, Mapping) else ()
    return next((str(entity["id"]) for entity in entities if entity.get("entity_type") == "WABA"), None)


def _to_do(number: Mapping[str, Any], inbound_url: str | None, verify_token: str) -> tuple[str, ...]:
    if inbound_url is None:
        return (
            "Give the plane an https address that Meta can reach (CORTEX_PUBLIC_URL), then check this connection again.",
        )
    configuration = number.get("webhook_configuration")
    if isinstance(configuration, Mapping) and inbound_url in configuration.values():
        return ()
    address = f"Enter {inbound_url} as callback URL and {verify_token} as verify token"
    return (
        f"{address}: Meta App Dashboard → WhatsApp → Configuration → Webhook.",
        "On the same page subscribe to the webhook field `messages`.",
    )
