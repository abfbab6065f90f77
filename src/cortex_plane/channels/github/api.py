"""Requests to GitHub's REST API, as an App or with a token, and what its errors mean.

The tokens of an installation live for an hour. They are kept in memory until shortly before.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from cortex_plane.channels.vendor_http import LONGEST_WAIT, VendorAnswer, VendorClient
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

API_URL = "https://api.github.com"
API_VERSION = "2022-11-28"
JWT_LIFE = timedelta(minutes=9)
"""GitHub accepts ten, by its own clock."""
CLOCK_SKEW = timedelta(seconds=60)
TOKEN_RESERVE = timedelta(minutes=2)
SECONDARY_LIMIT_SECONDS = 60.0
"""How long to wait where GitHub limits without saying for how long."""
MAX_TOKENS = 1000


class GitHubApi:
    def __init__(self, client: VendorClient) -> None:
        self._client = client
        self._tokens: dict[bytes, tuple[str, datetime | None]] = {}

    async def as_app(self, target: Target, method: str, path: str, json: Any = None) -> VendorAnswer:
        token = app_token(
            str(target.config.get("app_id", "")), target.secrets.get("private_key", ""), datetime.now(UTC)
        )
        return await self._request(target, token, method, path, json)

    async def call(self, target: Target, method: str, path: str, json: Any = None) -> VendorAnswer:
        """As the installation of the App, or with the token of the connection. Any status but 401 and those of limits."""
        if not target.secrets.get("private_key"):
            answer = await self._request(target, target.secrets.get("token", ""), method, path, json)
        else:
            answer = await self._request(target, await self.installation_token(target), method, path, json)
            if answer.status == 401:
                self._tokens.pop(_identity(target), None)
                answer = await self._request(target, await self.installation_token(target), method, path, json)
        if answer.status == 401:
            raise Undeliverable("GitHub does not accept the token of this connection any more.", gone=True)
        return answer

    async def installation_token(self, target: Target) -> str:
        token, until = self._tokens.get(_identity(target), ("", None))
        if until is not None and until > datetime.now(UTC):
            return token
        installation = quote(str(target.config.get("installation_id", "")), safe="")
        answer = await self.as_app(target, "POST", f"/app/installations/{installation}/access_tokens")
        if answer.status == 404:
            raise Undeliverable("The GitHub App is not installed there any more.", gone=True)
        if answer.status == 403:
            raise Undeliverable(f"GitHub gives no token for this installation: {_message(answer)}", gone=True)
        if answer.status == 401:
            raise Undeliverable(f"GitHub does not accept the App's id and private key: {_message(answer)}")
        body = expect(answer, 201)
        expires_at = datetime.fromisoformat(str(body["expires_at"]))
        if len(self._tokens) >= MAX_TOKENS:
            self._tokens.clear()
        self._tokens[_identity(target)] = (str(body["token"]), expires_at - TOKEN_RESERVE)
        return str(body["token"])

    async def _request(self, target: Target, token: str, method: str, path: str, json: Any) -> VendorAnswer:
        base = str(target.config.get("api_url") or API_URL).rstrip("/")
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "User-Agent": "cortex-plane",
            "X-GitHub-Api-Version": API_VERSION,
        }
        answer = await self._client.request(method, base + path, headers=headers, json=json)
        if answer.status >= 500:
            raise TryAgain(f"GitHub answered HTTP {answer.status}.")
        if answer.status in (403, 429) and (seconds := _limited(answer)) is not None:
            raise TryAgain("GitHub limits how much this connection may write.", after_seconds=seconds)
        return answer


def expect(answer: VendorAnswer, *statuses: int) -> Any:
    """The body of a success. Raises ``Undeliverable`` with GitHub's words for anything else."""
    if answer.status in statuses:
        return answer.json() if answer.body else None
    if answer.status in (301, 302, 307, 308):
        raise Undeliverable("The repository was renamed or moved: correct the place in the policy.", address=True)
    raise Undeliverable(f"GitHub refused it (HTTP {answer.status}): {_message(answer)}")


def app_token(app_id: str, private_key: str, now: datetime) -> str:
    """The JSON Web Token of an App. Raises ``InvalidInput`` for a key that is none."""
    try:
        key = serialization.load_pem_private_key(private_key.replace("\\n", "\n").encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise InvalidInput(
            "The private key of the GitHub App is no RSA key in PEM.",
            hint="Generate a private key on the App's page and give the whole .pem file.", field="private_key",
        )  # fmt: skip
    claims = {"iat": int((now - CLOCK_SKEW).timestamp()), "exp": int((now + JWT_LIFE).timestamp()), "iss": app_id}
    signed = b".".join(map(_base64url, (orjson.dumps({"alg": "RS256", "typ": "JWT"}), orjson.dumps(claims))))
    signature = key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    return (signed + b"." + _base64url(signature)).decode()


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _identity(target: Target) -> bytes:
    """Of the credentials: another key or installation has another token."""
    parts: Mapping[str, Any] = target.config
    values = [str(parts.get(name, "")) for name in ("api_url", "app_id", "installation_id")]
    return hashlib.sha256("\n".join([*values, target.secrets.get("private_key", "")]).encode()).digest()


def _limited(answer: VendorAnswer) -> float | None:
    """Seconds to wait where this is a limit and not a refusal: `retry-after`, then `x-ratelimit-reset`."""
    if answer.retry_after is not None:
        return answer.retry_after
    if answer.headers.get("x-ratelimit-remaining") == "0":
        try:
            # The answer tells the vendor's time too; ours may be off.
            reset = float(answer.headers["x-ratelimit-reset"]) - _date(answer)
        except (KeyError, ValueError):
            return SECONDARY_LIMIT_SECONDS
        return min(max(reset, 1.0), LONGEST_WAIT)
    is_limit = answer.status == 429 or "rate limit" in _message(answer).lower()
    return SECONDARY_LIMIT_SECONDS if is_limit else None


def _date(answer: VendorAnswer) -> float:
    return parsedate_to_datetime(answer.headers["date"]).timestamp()


def _message(answer: VendorAnswer) -> str:
    """GitHub's own words, short and printable."""
    try:
        body = orjson.loads(answer.body)
    except ValueError:
        body = None
    text = str(body.get("message", "")) if isinstance(body, dict) else ""
    return "".join(c for c in text if c.isprintable())[:200] or f"HTTP {answer.status}"
