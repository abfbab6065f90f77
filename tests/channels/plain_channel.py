"""A small channel and its vendor, both made up: what the plane does for every channel is tested with it.

The vendor is a server on loopback that keeps messages, and people press and write at it. Requests to the plane are signed with HMAC.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.channels.vendor_http import VendorAnswer, VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model import channels as model
from cortex_plane.notify.model.notifications import Card, ChatReply, Outgoing, Sent, Target, TryAgain, Undeliverable
from cortex_plane.notify.verbs.inbound import VendorRequest
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.channels.behaviour import Failure
from tests.channels.interactive_behaviour import SeenMessage
from tests.fixtures.people import World

SECRET, TOKEN = "plain-secret", "plain-token"
LONGEST = 3000
KIND = "telegram"
"""It stands in the place of a channel that the plane knows by name."""


class PlainChannel:
    channel_type: str = KIND
    carries_credentials = False
    fields: Sequence[model.ConnectionField] = (
        model.ConnectionField(name="api_url", description="Where the vendor is."),
        model.ConnectionField(name="token", description="Of the bot.", secret=True),
        model.ConnectionField(name="secret", description="Signs what comes in.", secret=True),
        model.ConnectionField(
            name="mode", description="How it is heard.", required=False, choices=("webhook", "polling")
        ),
    )

    def __init__(self, reason: model.ReasonInput = model.ReasonInput.REPLY) -> None:
        self.traits = model.ChannelTraits(
            most_buttons=3, edits=True, conversations=True, reason=reason, listens=True, text_limit=8000
        )
        self._client = VendorClient(Allowed.parse("127.0.0.1"))

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:
        return _state(card) != dict(last)

    def shows_whole(self, card: Card) -> bool:
        return not card.truncated and not card.redacted and len(card.arguments) <= LONGEST

    async def send(self, outgoing: Outgoing) -> Sent:
        match outgoing.content:
            case Card() as card:
                text = f"{card.risk} {card.subject}\n{card.arguments}\n{card.status}"
                body = {"text": text, "buttons": [[b.label, b.data] for b in card.buttons]}
                if outgoing.earlier is not None:
                    await self._post(outgoing.target, "/edit", {"id": outgoing.earlier, **body})
                    return Sent(message_ref=outgoing.earlier, shown=_state(card))
                chat = f"dm-{outgoing.target.address}"
                answer = await self._post(outgoing.target, "/send", {"chat": chat, **body})
                return Sent(message_ref=answer["id"], shown=_state(card))
            case ChatReply() as reply:
                body = {"chat": outgoing.target.address, "text": reply.text, "buttons": []}
                return Sent(message_ref=(await self._post(outgoing.target, "/send", body))["id"])
        return Sent()

    async def identify(self, target: Target, inbound_url: str | None) -> model.ConnectionIdentity:
        return model.ConnectionIdentity(account=f"@{target.connection}", external_id=inbound_url or "plain")

    def receive(self, target: Target, request: model.InboundRequest) -> model.ReceivedRequest:
        if request.method == "GET":
            return model.ReceivedRequest(reply=model.InboundReply(body=request.query.get("challenge", "").encode()))
        mac = hmac.new(target.secrets["secret"].encode(), request.body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(mac, request.headers.get("x-plain-signature", "")):
            raise Unauthenticated("The signature is not valid.", code="event_signature_invalid")
        try:
            events = orjson.loads(request.body)["events"]
        except (ValueError, KeyError, TypeError):
            raise InvalidInput("This is no request of the vendor.") from None
        return model.ReceivedRequest(
            reply=model.InboundReply(body=b"taken"),
            items=tuple(model.InboundItem(event_id=event["id"], payload=event) for event in events),
        )

    def read(
        self, payload: Mapping[str, Any]
    ) -> model.InboundEvent | model.DeliveryReport | model.ConnectionRevoked | None:
        if payload["kind"] == "revoked":
            return model.ConnectionRevoked(reason=payload["reason"])
        if payload["kind"] == "report":
            return model.DeliveryReport(message_ref=payload["message"], problem=payload["problem"])
        if payload["kind"] not in ("press", "text"):
            return None
        where: dict[str, Any] = {
            "sender": model.ChannelSender(id=payload["from"], name=payload["name"]),
            "chat": model.Chat(id=payload["chat"], is_private=payload["private"]),
            "answer_to": {"user": payload["from"]},
        }
        if payload["kind"] == "press":
            return model.ButtonPress(
                **where, data=payload["data"], message_ref=payload["message"], note=payload.get("note")
            )
        attachments = tuple(payload.get("attachments", ()))
        return model.ChatMessage(
            **where, text=payload["text"], reply_to=payload.get("reply_to"), attachments=attachments
        )

    async def answer(self, target: Target, event: model.InboundEvent, answer: model.InboundAnswer) -> str | None:
        body = {"user": event.answer_to["user"], "text": answer.text, "asks": answer.ask_for}
        ref = (await self._post(target, "/answer", body))["id"]
        return ref if answer.ask_for and self.traits.reason is model.ReasonInput.REPLY else None

    async def listen(self, target: Target, cursor: str | None, deliver: model.Deliver) -> None:
        while True:
            answer = await self._post(target, "/updates", {"after": int(cursor or 0)})
            items = [model.InboundItem(event_id=event["id"], payload=event) for event in answer["events"]]
            await deliver(items, cursor := str(answer["cursor"]))

    async def close(self) -> None:
        await self._client.close()

    async def _post(self, target: Target, path: str, body: Mapping[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {target.secrets['token']}"}
        answer: VendorAnswer = await self._client.request(
            "POST", f"{target.config['api_url']}{path}", headers=headers, json=body
        )
        if answer.status >= 500:
            raise TryAgain(f"The vendor answered HTTP {answer.status}.")
        if answer.status >= 400:
            raise Undeliverable(f"The vendor answered HTTP {answer.status}.")
        return answer.json()


def _state(card: Card) -> dict[str, Any]:
    buttons = [button.data for button in card.buttons]
    return {"status": card.status, "version": card.version, "votes": len(card.votes), "buttons": buttons}


@dataclass
class Vendor:
    """The server of the vendor."""

    port: int = 0
    sent: list[SeenMessage] = field(default_factory=list)
    shown: defaultdict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    """What each person was answered."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    failing: int = 0
    failure: Failure = Failure.TEMPORARY
    pollers: int = 0
    grew: asyncio.Event = field(default_factory=asyncio.Event)
    open: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self.open.add(task)
            task.add_done_callback(self.open.discard)
        try:
            await self._exchange(reader, writer)
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = orjson.loads(await reader.readexactly(int(headers.get("content-length", "0"))))
            status, answer = await self._answer(head[0].split(" ")[1], headers, body)
            text = orjson.dumps(answer)
            writer.write(
                f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
            )
            await writer.drain()

    async def _answer(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {}
        if self.failing > 0:
            self.failing -= 1
            if self.failure is Failure.LOST_ANSWER:
                await self._answer(path, headers, body)
            return (403 if self.failure is Failure.PERMANENT else 503), {}
        if path == "/send":
            ref = f"m{len(self.sent) + 1}"
            self.sent.append(SeenMessage(ref=ref, chat=body["chat"], text=body["text"], buttons=dict(body["buttons"])))
            return 200, {"id": ref}
        if path == "/edit":
            n = next(n for n, message in enumerate(self.sent) if message.ref == body["id"])
            self.sent[n] = replace(self.sent[n], text=body["text"], buttons=dict(body["buttons"]))
            return 200, {}
        if path == "/answer":
            ref = f"q{sum(map(len, self.shown.values())) + 1}"
            self.shown[body["user"]].append({**body, "id": ref})
            return 200, {"id": ref}
        return 200, await self._poll(body["after"])

    async def _poll(self, after: int) -> Any:
        self.pollers += 1
        try:
            while len(self.updates) <= after:
                self.grew.clear()
                await self.grew.wait()
        finally:
            self.pollers -= 1
        return {"events": self.updates[after:], "cursor": len(self.updates)}


@contextlib.asynccontextmanager
async def vendor() -> AsyncIterator[Vendor]:
    place = Vendor()
    server = await asyncio.start_server(place.serve, "127.0.0.1", 0)
    place.port = server.sockets[0].getsockname()[1]
    try:
        yield place
    finally:
        server.close()
        for task in (open_tasks := list(place.open)):
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)


class PlainStage:
    def __init__(self, place: Vendor, channel: PlainChannel) -> None:
        self.vendor, self.channel = place, channel
        self._numbers = itertools.count(1)

    async def connect(self, world: World, **config: str) -> UUID:
        draft = ConnectionDraft(
            channel_type=KIND, name=f"plain {self.vendor.port} {next(self._numbers)}", config={"api_url": f"http://127.0.0.1:{self.vendor.port}", **config},
            secrets={"token": TOKEN, "secret": SECRET}, agent=world.agent.slug,
        )  # fmt: skip
        served = ServedChannels(vendors={KIND: self.channel}, allowed=Allowed.parse("127.0.0.1"))
        return (await connections.create_connection(world.db, world.admin.actor, draft, channels=served)).id

    def address(self, name: str) -> str:
        return f"u-{name}"

    async def messages(self) -> list[SeenMessage]:
        return list(self.vendor.sent)

    async def answers(self, name: str) -> list[str]:
        return [answer["text"] for answer in self.vendor.shown[self.address(name)]]

    async def press(self, name: str, message: SeenMessage, label: str, *, private: bool = True) -> VendorRequest:
        return self._press(name, message, message.buttons[label], private)

    async def press_data(self, name: str, message: SeenMessage, data: str) -> VendorRequest:
        return self._press(name, message, data, True)

    def _press(self, name: str, message: SeenMessage, data: str, private: bool, **more: Any) -> VendorRequest:
        chat = message.chat if private else "room"
        return self.signed(
            self.event(name, "press", chat=chat, private=private, message=message.ref, data=data, **more)
        )

    async def words(self, name: str, text: str) -> VendorRequest:
        asked = self.vendor.shown[self.address(name)][-1]
        assert asked["asks"] is not None, "nothing was asked"
        if self.channel.traits.reason is model.ReasonInput.REPLY:
            return self.signed(self.event(name, "text", text=text, reply_to=asked["id"]))
        return self.signed(self.event(name, "press", message=None, data=asked["asks"], note=text))

    async def write(
        self, name: str, text: str, *, private: bool = True, attachments: tuple[str, ...] = ()
    ) -> VendorRequest:
        chat = f"dm-{self.address(name)}" if private else "room"
        return self.signed(
            self.event(name, "text", chat=chat, private=private, text=text, attachments=list(attachments))
        )

    def event(self, name: str, kind: str, **more: Any) -> dict[str, Any]:
        user = self.address(name)
        where = {"chat": f"dm-{user}", "private": True}
        return {"id": f"e{next(self._numbers)}", "kind": kind, "from": user, "name": name.title(), **where, **more}

    def signed(self, *events: dict[str, Any], secret: str = SECRET) -> VendorRequest:
        body = orjson.dumps({"events": events})
        mac = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return VendorRequest("POST", {}, {"x-plain-signature": mac}, body)

    def forge(self, request: VendorRequest) -> VendorRequest:
        mac = hmac.new(b"another", request.body, hashlib.sha256).hexdigest()
        return replace(request, headers={"x-plain-signature": mac})

    def fail(self, how: Failure, times: int) -> None:
        self.vendor.failure, self.vendor.failing = how, times

    async def connect_listening(self, world: World) -> UUID:
        return await self.connect(world, mode="polling")

    async def hold(self, name: str, text: str) -> None:
        self.vendor.updates.append(self.event(name, "text", text=text))
        self.vendor.grew.set()
