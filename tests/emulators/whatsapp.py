"""WhatsApp's Cloud API: messages of one business phone number and the webhooks about it, with the checks and limits of the real one."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.emulators.vendor_server import VendorFault, VendorFaults, served_on_loopback

ACCESS_TOKEN = "EAAGemulatedAccessToken0123456789"
APP_SECRET = "0123456789abcdef0123456789abcdef"
PHONE_NUMBER_ID, BUSINESS_ID = "106540352242922", "102290129340398"
DISPLAY_NUMBER = "15550783881"
_RE_ENGAGEMENT = "Re-engagement message"


class GraphError(Exception):
    def __init__(self, status: int, code: int, message: str, details: str = "", subcode: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.details, self.subcode = status, code, message, details, subcode

    @property
    def body(self) -> dict[str, Any]:
        return graph_error(self.code, self.message, self.details, self.subcode)


def graph_error(code: int, message: str, details: str = "", subcode: int | None = None) -> dict[str, Any]:
    error: dict[str, Any] = {
        "message": f"(#{code}) {message}",
        "type": "OAuthException",
        "code": code,
        "fbtrace_id": "Az8or2",
    }
    if details:
        error["error_data"] = {"messaging_product": "whatsapp", "details": details}
    if subcode is not None:
        error["error_subcode"] = subcode
    return {"error": error}


def _require(condition: object, details: str) -> None:
    if not condition:
        raise GraphError(400, 131009, "Parameter value is not valid", details)


@dataclass(kw_only=True)
class Person:
    wa_id: str
    name: str
    user_id: str
    """The business-scoped one."""
    has_window: bool = True
    """They wrote within the last 24 hours."""
    shows_number: bool = True
    """False: the business knows only the business-scoped id."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """What they wrote and pressed."""


class WhatsAppEmulator:
    """One business phone number, and the people who talk to it."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self.token, self.app_secret = ACCESS_TOKEN, APP_SECRET
        self.people: dict[str, Person] = {}
        self.sent: list[dict[str, Any]] = []
        """Messages of the business, in order, each with its `id`."""
        self.typing: list[str] = []
        """The messages of people below which it is shown that the business types."""
        self.templates: dict[tuple[str, str], int] = {}
        """How many variables the body of each approved template has, by name and language."""
        self.callback: str | None = None
        self.reports_late = False
        """Whether a closed window is reported by a webhook, after the message was accepted."""
        self.late_reports: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.faults = VendorFaults()
        self.url = ""

    # Python API

    def new_id(self) -> str:
        return f"wamid.HBgLMTY1MDU1NTEyMzQVAgASGBQz{next(self._ids):08d}AA=="

    def person(self, name: str) -> Person:
        if name not in self.people:
            number = len(self.people) + 1
            self.people[name] = Person(
                wa_id=f"1650555{number:04d}", name=name.capitalize(), user_id=f"US.1349120865530{number:04d}"
            )
        return self.people[name]

    def history(self, person: Person) -> list[dict[str, Any]]:
        return [
            message
            for message in self.sent
            if message.get("to", message.get("recipient")) in (person.wa_id, person.user_id)
        ]

    def fail(self, fault: VendorFault, times: int = 1, after: int = 0) -> None:
        self.faults.add(fault, times, after)

    async def subscribe(self, url: str, verify_token: str) -> int:
        """What Meta does when a person enters an address: the status of the check."""
        challenge = str(next(self._ids) + 1158201444)
        query = {"hub.mode": "subscribe", "hub.verify_token": verify_token, "hub.challenge": challenge}
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(url, params=query)
        if answer.status_code == 200 and answer.text == challenge:
            self.callback = url
        return answer.status_code

    def text(self, name: str, text: str, *, reply_to: str | None = None, group: str | None = None) -> dict[str, Any]:
        """A message that somebody writes."""
        return self._message(name, "text", {"body": text}, reply_to, group)

    def tap(self, name: str, message: dict[str, Any], title: str, *, group: str | None = None) -> dict[str, Any]:
        """A press of a reply button, or of a button of a template."""
        (button,) = [button for button in buttons_of(message) if button["title"] == title]
        return self.tap_data(name, message["id"], button["id"], title, group=group)

    def tap_data(
        self, name: str, message_id: str, id: str, title: str = "Approve", *, group: str | None = None
    ) -> dict[str, Any]:
        content = {"type": "button_reply", "button_reply": {"id": id, "title": title}}
        return self._message(name, "interactive", content, message_id, group)

    def attach(self, name: str, filename: str, caption: str = "") -> dict[str, Any]:
        document = {"filename": filename, "mime_type": "application/pdf", "sha256": "x", "id": "1", "caption": caption}
        return self._message(name, "document", document, None, None)

    def _message(
        self, name: str, kind: str, content: dict[str, Any], reply_to: str | None, group: str | None
    ) -> dict[str, Any]:
        person = self.person(name)
        message: dict[str, Any] = {"id": self.new_id(), "timestamp": str(int(time.time())), "type": kind, kind: content}
        message |= {"from": person.wa_id} if person.shows_number else {}
        message["from_user_id"] = person.user_id
        if reply_to is not None:
            message["context"] = {"from": DISPLAY_NUMBER, "id": reply_to}
        if group is not None:
            message["group_id"] = group
        person.has_window = True
        person.messages.append(message)
        return message

    def webhook(self, *messages: dict[str, Any], statuses: tuple[dict[str, Any], ...] = ()) -> bytes:
        """The body about these events: each in a change of its own, batched."""
        changes = [self._change({"contacts": [self._contact(message)], "messages": [message]}) for message in messages]
        changes += [self._change({"contacts": [self._contact(status)], "statuses": [status]}) for status in statuses]
        return orjson.dumps({"object": "whatsapp_business_account", "entry": [{"id": BUSINESS_ID, "changes": changes}]})

    def _change(self, events: dict[str, Any]) -> dict[str, Any]:
        metadata = {"display_phone_number": DISPLAY_NUMBER, "phone_number_id": PHONE_NUMBER_ID}
        return {"field": "messages", "value": {"messaging_product": "whatsapp", "metadata": metadata, **events}}

    def _contact(self, event: dict[str, Any]) -> dict[str, Any]:
        """Of whoever a message comes from, or went to."""
        id = event.get("from_user_id") or event["recipient_user_id"]
        (person,) = [each for each in self.people.values() if each.user_id == id]
        contact = {"profile": {"name": person.name}, "user_id": person.user_id}
        return contact | ({"wa_id": person.wa_id} if person.shows_number else {})

    def status(
        self, person: Person, message_id: str, status: str, *, error: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        report: dict[str, Any] = {
            "id": message_id, "status": status, "timestamp": str(int(time.time())), "recipient_id": person.wa_id,
            "recipient_user_id": person.user_id,
        }  # fmt: skip
        if error is not None:
            report["errors"] = [error]
        return report

    def signed(self, body: bytes, secret: str | None = None) -> dict[str, str]:
        mac = hmac.new((secret or self.app_secret).encode(), body, hashlib.sha256).hexdigest()
        return {"content-type": "application/json", "x-hub-signature-256": f"sha256={mac}"}

    async def post(self, body: bytes, *, secret: str | None = None) -> int:
        """To the address of the business; the status."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(self.callback or "", content=body, headers=self.signed(body, secret))
        return answer.status_code

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[WhatsAppEmulator]:
        async with served_on_loopback(self.app()) as origin:
            self.url = f"{origin}/v24.0"
            yield self

    # Graph API

    def app(self) -> Starlette:
        routes = [
            Route("/v24.0/{id}", self._guarded(self._get_number), methods=["GET"]),
            Route("/v24.0/{id}/messages", self._guarded(self._send), methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def _guarded(self, act: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            body = orjson.loads(await request.body() or b"{}")
            self.requests.append((request.method, request.url.path, body))
            try:
                self._authorize(request)
            except GraphError as error:
                return JSONResponse(error.body, error.status)
            if request.method == "POST":
                return await self.faults.around(lambda: self._act(act, request))
            return await self._act(act, request)

        return handle

    def _authorize(self, request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise GraphError(401, 190, "Invalid OAuth access token - Cannot parse access token")
        proof = request.query_params.get("appsecret_proof")
        expected = hmac.new(self.app_secret.encode(), self.token.encode(), hashlib.sha256).hexdigest()
        if proof is not None and proof != expected:
            raise GraphError(400, 100, "Invalid appsecret_proof provided in the API argument")
        if request.path_params["id"] != PHONE_NUMBER_ID:
            id = request.path_params["id"]
            message = f"Unsupported {request.method.lower()} request. Object with ID '{id}' does not exist"
            raise GraphError(400, 100, message, subcode=33)

    async def _act(self, act: Callable[[Request], Awaitable[Any]], request: Request) -> Response:
        try:
            return JSONResponse(await act(request))
        except GraphError as error:
            return JSONResponse(error.body, error.status)

    async def _get_number(self, request: Request) -> dict[str, Any]:
        configuration = {"application": self.callback} if self.callback else {}
        return {
            "id": PHONE_NUMBER_ID, "verified_name": "Cortex", "display_phone_number": "+1 555-078-3881",
            "quality_rating": "GREEN", "code_verification_status": "VERIFIED", "platform_type": "CLOUD_API",
            "webhook_configuration": configuration,
            "health_status": {"can_send_message": "AVAILABLE", "entities": [
                {"entity_type": "PHONE_NUMBER", "id": PHONE_NUMBER_ID, "can_send_message": "AVAILABLE"},
                {"entity_type": "WABA", "id": BUSINESS_ID, "can_send_message": "AVAILABLE"},
            ]},
        }  # fmt: skip

    async def _send(self, request: Request) -> dict[str, Any]:
        draft = orjson.loads(await request.body())
        _require(draft.get("messaging_product") == "whatsapp", "messaging_product must be whatsapp")
        if "status" in draft:
            return self._show_typing(draft)
        address = str(draft.get("to") or draft.get("recipient") or "")
        person = next((each for each in self.people.values() if address in (each.wa_id, each.user_id)), None)
        is_group = draft.get("recipient_type") == "group"
        if person is None and not is_group:
            raise GraphError(400, 131026, "Message undeliverable", "Message Undeliverable.")
        self._check_content(draft)
        context = draft.get("context", {}).get("message_id")
        known = {message["id"] for message in self.sent} | {
            m["id"] for each in self.people.values() for m in each.messages
        }
        _require(context is None or context in known, "context: no such message")
        id = self.new_id()
        if person is not None and not person.has_window and draft["type"] != "template":
            self._refuse_for_window(person, id)
        else:
            self.sent.append({**draft, "id": id})
        contact = {"input": address, "wa_id": person.wa_id if person else address}
        return {"messaging_product": "whatsapp", "contacts": [contact], "messages": [{"id": id}]}

    def _show_typing(self, draft: dict[str, Any]) -> dict[str, Any]:
        _require(draft["status"] == "read", "status must be read")
        indicator = draft.get("typing_indicator")
        _require(indicator in (None, {"type": "text"}), "typing_indicator.type must be text")
        known = {message["id"] for person in self.people.values() for message in person.messages}
        _require(draft.get("message_id") in known, "message_id: no such message")
        if indicator is not None:
            self.typing.append(str(draft["message_id"]))
        return {"success": True}

    def _refuse_for_window(self, person: Person, id: str) -> None:
        details = "Message failed to send because more than 24 hours have passed since the customer last replied to this number."
        if not self.reports_late:
            raise GraphError(400, 131047, _RE_ENGAGEMENT, details)
        error = {"code": 131047, "title": _RE_ENGAGEMENT, "message": _RE_ENGAGEMENT, "error_data": {"details": details}}
        self.late_reports.append(self.status(person, id, "failed", error=error))

    def _check_content(self, draft: dict[str, Any]) -> None:
        match draft.get("type"):
            case "text":
                _require(1 <= len(draft["text"]["body"]) <= 4096, "text.body must be between 1 and 4096 characters")
            case "interactive":
                _check_buttons(draft["interactive"])
            case "template":
                self._check_template(draft["template"])
            case other:
                raise GraphError(400, 131051, "Message type is not supported", str(other))

    def _check_template(self, template: dict[str, Any]) -> None:
        count = self.templates.get((template["name"], template["language"]["code"]))
        if count is None:
            raise GraphError(404, 132001, "Template name does not exist in the translation")
        values = [
            value for part in template.get("components", ()) if part["type"] == "body" for value in part["parameters"]
        ]
        if len(values) != count:
            raise GraphError(400, 132000, "Number of parameters does not match the expected number of params")
        for value in values:
            if not value["text"] or re.search(r"[\n\t]| {5,}", value["text"]):
                details = "Param text cannot have new-line/tab characters or more than 4 consecutive spaces"
                raise GraphError(400, 100, "Invalid parameter", details)
            if len(value["text"]) > 1024:
                raise GraphError(400, 132005, "Translated text too long")


def _check_buttons(interactive: dict[str, Any]) -> None:
    _require(interactive["type"] == "button", "only reply buttons are emulated")
    _require(1 <= len(interactive["body"]["text"]) <= 1024, "body.text must be between 1 and 1024 characters")
    _require(len(interactive.get("footer", {}).get("text", "")) <= 60, "footer.text must be at most 60 characters")
    buttons = [button["reply"] for button in interactive["action"]["buttons"]]
    _require(1 <= len(buttons) <= 3, "Invalid buttons count. Min allowed buttons: 1, Max allowed buttons: 3")
    _require(all(1 <= len(button["title"]) <= 20 for button in buttons), "Button title must be at most 20 characters")
    _require(all(1 <= len(button["id"]) <= 256 for button in buttons), "Button id must be at most 256 characters")
    for name in ("id", "title"):
        _require(len({button[name] for button in buttons}) == len(buttons), "Duplicate buttons")


def buttons_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["type"] != "interactive":
        return []
    return [button["reply"] for button in message["interactive"]["action"]["buttons"]]


def text_of(message: dict[str, Any]) -> str:
    """All that a reader sees of it."""
    match message["type"]:
        case "text":
            return str(message["text"]["body"])
        case "interactive":
            return str(message["interactive"]["body"]["text"])
    parts = [part for part in message["template"].get("components", ()) if part["type"] == "body"]
    values = [value["text"] for part in parts for value in part["parameters"]]
    return " ".join(values)


def urls_of(message: dict[str, Any]) -> list[str]:
    return re.findall(r"https?://\S+", text_of(message))
