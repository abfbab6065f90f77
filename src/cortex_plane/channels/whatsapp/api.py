"""Requests to WhatsApp's Cloud API, with what its errors mean."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from cortex_plane.channels.vendor_http import VendorAnswer, VendorClient
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

API = "https://graph.facebook.com/v24.0"
GROUP = "group:"
"""Before the id of a group, in an address."""
_PHONE = re.compile(r"\+?[0-9]{6,20}")
_USER_ID = re.compile(r"[A-Z]{2}\.[A-Za-z0-9.]{4,150}")
_LONGEST_MESSAGE = 200

INVALID_PARAMETER = 100
WINDOW_CLOSED = 131047
TOKEN_CODES: Final = frozenset({0, 190})
_LOCKED = 131031
_LIMITS: Final[dict[int, float]] = {4: 60, 80007: 60, 130429: 5, 131048: 600, 131056: 6, 133016: 600, 368: 3600}
"""Codes of rate limits and blocks, and how many seconds they are waited for where Meta does not say."""
_ONE_PERSON = 131056
"""Too many messages to this person: others are not concerned."""
_TROUBLE: Final = frozenset({1, 2, 131000, 131016, 131057, 133004})
_PERSON: Final = frozenset({131021, 131026, 131030, 131062})
"""They are not on WhatsApp, did not accept its terms, or are not among the numbers that a test account may reach."""
WINDOW_WORDS = (
    "WhatsApp takes no message to this person now: they last wrote more than 24 hours ago. Ask them to write to this number, or set"
    " up a template for the connection."
)


class GraphApi:
    def __init__(self, client: VendorClient) -> None:
        self._client = client

    async def get_number(self, target: Target) -> dict[str, Any]:
        fields = "id,display_phone_number,verified_name,webhook_configuration,health_status"
        answer = await self._call(target, "GET", "", query=f"fields={fields}&")
        return answer if isinstance(answer, dict) else {}

    async def send(self, target: Target, address: str, message: Mapping[str, Any], *, quote: str | None = None) -> str:
        """Returns the id of the message. Raises ``TryAgain`` or ``Undeliverable``."""
        body = {"messaging_product": "whatsapp", **_recipient(address), **message}
        if quote is not None:
            body["context"] = {"message_id": quote}
        answer = await self._call(target, "POST", "/messages", json=body)
        try:
            return str(answer["messages"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise TryAgain("WhatsApp did not say which message it took.") from None

    async def show_typing(self, target: Target, message_id: str) -> None:
        """Until it is answered, at most 25 seconds. WhatsApp marks the message as read with it."""
        body = {"messaging_product": "whatsapp", "status": "read", "message_id": message_id}
        await self._call(target, "POST", "/messages", json={**body, "typing_indicator": {"type": "text"}})

    async def _call(self, target: Target, method: str, path: str, *, query: str = "", json: Any = None) -> Any:
        token = target.secrets.get("access_token", "")
        # Shows Meta that the token was not stolen from the app, and shows us that the app's secret is right.
        proof = hmac.new(target.secrets.get("app_secret", "").encode(), token.encode(), hashlib.sha256).hexdigest()
        base = str(target.config.get("api_url") or API).rstrip("/")
        url = f"{base}/{target.config.get('phone_number_id', '')}{path}?{query}appsecret_proof={proof}"
        answer = await self._client.request(method, url, headers={"Authorization": f"Bearer {token}"}, json=json)
        if 200 <= answer.status < 300:
            return answer.json()
        raise _error(answer)


def _recipient(address: str) -> dict[str, str]:
    if address.startswith(GROUP):
        return {"recipient_type": "group", "to": address.removeprefix(GROUP)}
    if _PHONE.fullmatch(address):
        return {"recipient_type": "individual", "to": address.removeprefix("+")}
    if _USER_ID.fullmatch(address):
        return {"recipient_type": "individual", "recipient": address}
    raise Undeliverable(f"{address!r} is no phone number and no user id of WhatsApp.", address=True)


def problem_of(error: Any) -> tuple[int, str]:
    """The code and the words of an error, as answers and webhooks have it."""
    if not isinstance(error, Mapping):
        return 0, ""
    code, data = error.get("code"), error.get("error_data")
    details = data.get("details") if isinstance(data, Mapping) else None
    words = details or error.get("message") or error.get("title") or ""
    return code if isinstance(code, int) else 0, re.sub(r"[^\x20-\x7e]+", " ", str(words))[:_LONGEST_MESSAGE]


def _error(answer: VendorAnswer) -> TryAgain | Undeliverable:
    try:
        body = orjson.loads(answer.body)
    except ValueError:
        body = {}
    code, problem = problem_of(body.get("error") if isinstance(body, dict) else None)
    words = f"WhatsApp answered HTTP {answer.status}" + (f", {code}: {problem}" if problem else "") + "."
    if answer.status == 429 or code in _LIMITS:
        after = answer.retry_after
        after = _LIMITS.get(code, 5.0) if after is None else after
        return TryAgain(words, after_seconds=after, only_chat=code == _ONE_PERSON)
    if answer.status >= 500 or code in _TROUBLE:
        return TryAgain(words, after_seconds=answer.retry_after)
    if answer.status == 401 or code in TOKEN_CODES:
        return Undeliverable("WhatsApp does not accept the access token any more.", vendor_code=code, gone=True)
    if code == WINDOW_CLOSED:
        return Undeliverable(WINDOW_WORDS, vendor_code=code)
    return Undeliverable(words, vendor_code=code, gone=code == _LOCKED, address=code in _PERSON)
