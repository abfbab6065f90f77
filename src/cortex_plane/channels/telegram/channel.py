"""The channel to Telegram: cards that change in place, conversations, updates by webhook or by polls.

A card is one message in the private chat with the bot: buttons stand on it while its request is open, and the same message says
later how it ended. A reason is asked for by a message to reply to. The token of the bot is a part of every address, so no error
says which address was called.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels import card_text
from cortex_plane.channels.activity_pace import ActivityPace
from cortex_plane.channels.markdown import visible_text
from cortex_plane.channels.reply_parts import send_next_part
from cortex_plane.channels.telegram import messages, updates
from cortex_plane.channels.telegram.bot_api import NO_MESSAGE_TO_EDIT, NOT_MODIFIED, QUERY_TOO_OLD, BotAnswer, BotApi
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model import channels
from cortex_plane.notify.model import notifications as notify_model
from cortex_plane.notify.model.notifications import (
    Card,
    ChatReply,
    Occasion,
    Outgoing,
    Sent,
    Target,
    TryAgain,
    Undeliverable,
)

POLL_SECONDS = 25
MOST_POLLS = 1000
"""At a time, from this process."""
TOAST_LIMIT = 200
GROUP_STREAM_SECONDS = 6.0
"""Between two edits in a group, which takes 20 messages a minute from a bot: half of them are left for everything else."""
TYPING_SECONDS = 5.0
"""So long Telegram shows it."""
TYPING_PER_SECOND = 10
"""Of the 30 messages that a bot may send: a third."""
NEW_NOTES: Final = frozenset({Occasion.REMINDED, Occasion.ESCALATED, Occasion.DELEGATED, Occasion.CHANGED})
"""What a person notices only as a message of its own: an edit makes no sound."""
COMMANDS: Final = {
    "new": "Begin a new conversation",
    "status": "What the agent does now",
    "pause": "Pause the agent",
    "resume": "Let the agent go on",
    "agents": "List the agents, or choose another",
    "delegate": "As a reply to a request: let a colleague decide it",
    "link": "Link this account with your account in the plane",
    "help": "What can be done here",
}
_NO_PREVIEW = {"is_disabled": True}


class TelegramChannel:
    channel_type = "telegram"
    carries_credentials = False
    traits = channels.ChannelTraits(
        most_buttons=8, edits=True, threads=True, conversations=True, reason=channels.ReasonInput.REPLY,
        text_limit=messages.TEXT_LIMIT, per_second=30.0, chat_seconds=1.0, stream_seconds=2.0, streams_per_second=10.0,
        stream_chat_seconds=lambda address: GROUP_STREAM_SECONDS if address.startswith("-") else 0.0, listens=True,
    )  # fmt: skip
    fields: Sequence[channels.ConnectionField] = (
        channels.ConnectionField(
            name="bot_token", secret=True, pattern=r"[0-9]{5,20}:[A-Za-z0-9_-]{30,100}",
            description="The token that @BotFather shows after /newbot, or after /token.",
        ),
        channels.ConnectionField(
            name="mode", required=False, choices=("webhook", "polling"),
            description="`webhook`: Telegram posts to the public https address of the plane. `polling`: the plane asks, and "
            "needs no public address. Without it: webhook where the plane has such an address.",
        ),
        channels.ConnectionField(
            name="api_url", required=False, pattern=r"https?://[^\s?#]{1,300}",
            description="The base address of a Bot API server of your own.",
        ),
    )  # fmt: skip

    def __init__(self, client: VendorClient, *, poll_seconds: int = POLL_SECONDS) -> None:
        self._client, self._polls = client, client.apart(MOST_POLLS)
        self._pace = ActivityPace(chat_seconds=TYPING_SECONDS, per_second=TYPING_PER_SECOND)
        self._api, self._poll_api, self._poll_seconds = BotApi(client), BotApi(self._polls), poll_seconds

    async def close(self) -> None:
        await self._polls.close()
        await self._client.close()

    # Cards, replies and what else is sent.

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:
        return card_text.concerns_every_change(card, last)

    def shows_whole(self, card: Card) -> bool:
        return card_text.shows_whole(card, messages.fit_card)

    async def send(self, outgoing: Outgoing) -> Sent:
        match outgoing.content:
            case Card() as card:
                return await self._send_card(outgoing, card)
            case ChatReply() as reply:
                return await self._send_reply(outgoing, reply)
            case notify_model.Invitation() | notify_model.Alert() as notice:
                return await self._send_lines(outgoing, card_text.short_lines(notice, outgoing.timestamp), notice.url)
        raise Undeliverable("Telegram carries requests, replies, invitations and alerts, and nothing else.")

    async def _send_card(self, outgoing: Outgoing, card: Card) -> Sent:
        content = _card_message(card, outgoing.timestamp)
        earlier = updates.read_ref(outgoing.earlier)
        if earlier is not None:
            chat, id = earlier
            answer = await self._api.call(outgoing.target, "editMessageText", chat_id=chat, message_id=id, **content)
            if answer.ok or answer.means(NOT_MODIFIED):
                await self._send_note(outgoing, card, chat, id)
                return Sent(message_ref=outgoing.earlier, shown={"status": card.status.value})
            if not answer.means(*NO_MESSAGE_TO_EDIT):
                answer.require()
        result = await self._call(outgoing.target, "sendMessage", chat_id=outgoing.target.address, **content)
        return Sent(message_ref=updates.message_ref(result), shown={"status": card.status.value})

    async def _send_note(self, outgoing: Outgoing, card: Card, chat: str, first: int) -> None:
        """Says under the first message why it is worth another look."""
        if card.status is not ApprovalStatus.PENDING or card.occasion not in NEW_NOTES:
            return
        heading = card_text.card_heading(card, is_first=False)
        text = f"<b>{messages.prose(heading)}</b>: {messages.prose(card_text.one_line(card.subject, 300))}"
        await self._call(
            outgoing.target, "sendMessage", chat_id=chat, text=text, parse_mode="HTML",
            link_preview_options=_NO_PREVIEW, reply_parameters=_reply_to(first),
        )  # fmt: skip

    async def _send_lines(self, outgoing: Outgoing, lines: Sequence[card_text.CardLine], url: str) -> Sent:
        fitting, _ = messages.fit_card(lines)
        text = f"{messages.card_html(fitting)}\n{messages.escape(url)}"
        result = await self._call(
            outgoing.target, "sendMessage", chat_id=outgoing.target.address, text=text, parse_mode="HTML",
            link_preview_options=_NO_PREVIEW,
        )  # fmt: skip
        return Sent(message_ref=updates.message_ref(result))

    async def _send_reply(self, outgoing: Outgoing, reply: ChatReply) -> Sent:
        target = outgoing.target
        if not reply.is_final and outgoing.earlier is None:
            await self._api.call(
                target,
                "sendChatAction",
                chat_id=target.address,
                action="typing",
                message_thread_id=_number(reply.thread),
            )

        async def send_part(text: str, ref: str | None) -> str | None:
            content: dict[str, Any] = {
                "text": messages.reply_html(text), "parse_mode": "HTML", "link_preview_options": _NO_PREVIEW,
            }  # fmt: skip
            earlier = updates.read_ref(ref)
            if earlier is not None:
                answer = await self._api.call(
                    target, "editMessageText", chat_id=earlier[0], message_id=earlier[1], **content
                )
                if not answer.means(*NO_MESSAGE_TO_EDIT):
                    if not answer.means(NOT_MODIFIED):
                        answer.require()
                    return ref
            result = await self._call(
                target, "sendMessage", chat_id=target.address, message_thread_id=_number(reply.thread), **content
            )
            return updates.message_ref(result)

        texts = card_text.chunks(visible_text(reply.text), messages.TEXT_LIMIT - messages.MARGIN, messages.utf16)
        return await send_next_part(outgoing, texts, send_part)

    # The connection.

    async def identify(self, target: Target, inbound_url: str | None) -> channels.ConnectionIdentity:
        me = await self._check(target, "getMe")
        mode = str(target.config.get("mode") or ("webhook" if (inbound_url or "").startswith("https:") else "polling"))
        made: dict[str, str] = {}
        if mode == "webhook":
            if inbound_url is None:
                raise InvalidInput(
                    "Telegram cannot reach this plane: it has no public address. Use `mode` polling.", field="mode"
                )
            secret = target.secrets.get("webhook_secret") or secrets.token_urlsafe(32)
            made = {"webhook_secret": secret}
            await self._check(
                target, "setWebhook", url=inbound_url, secret_token=secret, allowed_updates=updates.ALLOWED_UPDATES
            )
        else:
            await self._check(target, "deleteWebhook")
        commands = [{"command": name, "description": text} for name, text in COMMANDS.items()]
        await self._check(target, "setMyCommands", commands=commands)
        return channels.ConnectionIdentity(
            account=f"@{me['username']}",
            external_id=str(me["id"]),
            config={"mode": mode, "bot_id": str(me["id"]), "bot_username": str(me["username"])},
            secrets=made,
        )

    async def _check(self, target: Target, method: str, **parameters: Any) -> Any:
        """A call of the set-up: errors name the field that is wrong."""
        try:
            answer = await self._api.call(target, method, **parameters)
        except Undeliverable as error:
            raise InvalidInput(error.message, field="api_url") from None
        if answer.status in (401, 404):
            raise InvalidInput("Telegram does not know this token. Copy it again from @BotFather.", field="bot_token")
        if answer.means("bad webhook"):
            raise InvalidInput(f"Telegram refuses the address of the plane: {answer.description}", field="mode")
        try:
            return answer.require()
        except Undeliverable as error:
            raise InvalidInput(error.message, field="bot_token") from None

    def receive(self, target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
        return updates.read_webhook(target, request)

    def read(self, payload: Mapping[str, Any]) -> channels.InboundEvent | None:
        return updates.read_update(payload)

    async def listen(self, target: Target, cursor: str | None, deliver: channels.Deliver) -> None:
        """Telegram forgets what is before the offset, so the next poll is what acknowledges."""
        offset = int(cursor) if cursor and re.fullmatch(r"[0-9]{1,18}", cursor) else None
        while True:
            answer = await self._poll_api.call(
                target, "getUpdates", seconds=self._poll_seconds + 10, offset=offset, timeout=self._poll_seconds,
                allowed_updates=updates.ALLOWED_UPDATES,
            )  # fmt: skip
            items = [updates.update_item(target, update) for update in answer.require()]
            if items:
                offset = max(int(item.event_id) for item in items) + 1
                await deliver(items, str(offset))

    # Answers.

    async def show_activity(self, target: Target, event: channels.ChatMessage) -> None:
        if not self._pace.take(target.connection_id, event.chat.id):
            return
        try:
            await self._call(
                target, "sendChatAction", chat_id=event.chat.id, action="typing",
                message_thread_id=_number(event.chat.thread),
            )  # fmt: skip
        except TryAgain as error:
            self._pace.pause(target.connection_id, error.after_seconds)
            raise

    async def answer(self, target: Target, event: channels.InboundEvent, answer: channels.InboundAnswer) -> str | None:
        if isinstance(event, channels.ButtonPress):
            is_shown = await self._answer_press(target, event, answer)
            if answer.ask_for is None:
                if not is_shown and event.chat.is_private:
                    await self._write(target, event, answer.text)
                return None
        if answer.ask_for is None:
            await self._write(target, event, answer.text)
            return None
        prompt = {"force_reply": True, "selective": True, "input_field_placeholder": "Your words"}
        return await self._write(target, event, answer.text, reply_markup=prompt)

    async def _answer_press(self, target: Target, press: channels.ButtonPress, answer: channels.InboundAnswer) -> bool:
        """Ends the waiting of the button. False where the person was not shown the whole text."""
        fits = len(answer.text) <= TOAST_LIMIT
        text = answer.text if fits else answer.text[: TOAST_LIMIT - 1] + "…"
        result = await self._api.call(
            target, "answerCallbackQuery", callback_query_id=press.answer_to.get("callback_query_id", ""), text=text,
            show_alert=answer.is_problem,
        )  # fmt: skip
        if not result.ok and not result.means(*QUERY_TOO_OLD):
            result.require()
        return result.ok and fits

    async def _write(
        self, target: Target, event: channels.InboundEvent, text: str, reply_markup: Mapping[str, Any] | None = None
    ) -> str | None:
        """A message under the one that it answers; a person who blocked the bot meanwhile is no error."""
        under = event.answer_to.get("message_id", "")
        if isinstance(event, channels.ButtonPress) and (ref := updates.read_ref(event.message_ref)) is not None:
            under = str(ref[1])
        result: BotAnswer | None = None
        for part in card_text.chunks(text, messages.TEXT_LIMIT, messages.utf16):
            result = await self._api.call(
                target, "sendMessage", chat_id=event.chat.id, text=part, message_thread_id=_number(event.chat.thread),
                link_preview_options=_NO_PREVIEW, reply_markup=reply_markup,
                reply_parameters=_reply_to(int(under)) if under.isdecimal() else None,
            )  # fmt: skip
            if not result.ok and result.status != 403:
                result.require()
        return updates.message_ref(result.result) if result is not None and result.ok else None

    async def _call(self, target: Target, method: str, **parameters: Any) -> Any:
        return (await self._api.call(target, method, **parameters)).require()


def _card_message(card: Card, now: datetime) -> dict[str, Any]:
    lines, is_whole = messages.fit_card(card_text.card_lines(card, now))
    buttons = [button for button in card.buttons if is_whole or button.action is not channels.ButtonAction.APPROVE]
    text = messages.card_html(lines)
    if not messages.is_linkable(card.url):
        text += f"\n{messages.escape(card.url)}"
    is_open = card.status is ApprovalStatus.PENDING
    return {
        "text": text,
        "parse_mode": "HTML",
        "link_preview_options": _NO_PREVIEW,
        "reply_markup": messages.keyboard(buttons if is_open else (), card.url),
    }


def _reply_to(message: int) -> dict[str, Any]:
    return {"message_id": message, "allow_sending_without_reply": True}


def _number(thread: str | None) -> int | None:
    return int(thread) if thread and thread.isdecimal() else None
