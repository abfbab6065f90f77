"""Who calls the gateway over HTTP: a key of the plane, or a token of an authorization server that was made for this gateway.

Neither is ever passed on to a server behind the gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import jwt
import structlog
from mcp.server.auth.provider import AccessToken

from cortex_plane.client import Client
from cortex_plane.kernel.errors import CortexError, SetupError, Unauthenticated
from cortex_plane.mcp_gateway.gateway_calls import GatewayCaller
from cortex_plane.mcp_gateway.gateway_file import OAuthSettings

log = structlog.get_logger()

FRESH_SECONDS = 30.0
"""So long a key or token that was accepted or refused is not looked at again."""
MAX_CALLERS = 1000
KEYS_SECONDS = 300.0
MAX_TOKEN = 8192
MAX_JWKS_BYTES = 256 * 1024
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by a key pair: what only shares a secret proves nothing."""
LEEWAY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class _Proof:
    at: float
    access: AccessToken | None
    key: str = ""


class KeyCallers:
    """Finds people of one org by keys of the plane, and by tokens where an authorization server is named. Implements the SDK's `TokenVerifier`."""

    def __init__(self, plane_url: str, resource: str, org: UUID, oauth: OAuthSettings | None = None) -> None:
        self._plane_url, self._resource, self._org = plane_url, resource, org
        self._tokens = None if oauth is None else TokenReader(oauth, resource)
        self._proofs: OrderedDict[str, _Proof] = OrderedDict()
        self._callers: OrderedDict[str, GatewayCaller] = OrderedDict()

    async def verify_token(self, token: str) -> AccessToken | None:
        if len(token) > MAX_TOKEN or not token.isascii():
            return None
        digest = hashlib.sha256(token.encode()).hexdigest()
        proof = self._proofs.get(digest)
        if proof is None or time.monotonic() - proof.at > FRESH_SECONDS:
            proof = await self._prove(token)
            self._proofs[digest] = proof
            while len(self._proofs) > MAX_CALLERS:
                self._proofs.popitem(last=False)
        return proof.access

    async def _prove(self, token: str) -> _Proof:
        at, key, claims, expires_at = time.monotonic(), token, {}, None
        if token.count(".") == 2:
            if self._tokens is None:
                return _Proof(at, None)
            try:
                claims = await self._tokens.claims(token)
            except (jwt.PyJWTError, CortexError, httpx.HTTPError, ValueError) as error:
                log.info("token refused", reason=f"{type(error).__name__}: {error}"[:200])
                return _Proof(at, None)
            key, expires_at = self._tokens.key_of(claims), int(claims["exp"])
        async with Client(self._plane_url, key) as plane:
            try:
                me = await plane.me()
            except Unauthenticated:
                return _Proof(at, None)
        if me.org_id != self._org:
            log.info("key refused", reason="it is a key of another org", key_id=str(me.key_id))
            return _Proof(at, None)
        id = str(me.key_id)
        if id not in self._callers:
            self._callers[id] = GatewayCaller(id, Client(self._plane_url, key))
            while len(self._callers) > MAX_CALLERS:
                _, oldest = self._callers.popitem(last=False)
                await oldest.plane.close()
        access = AccessToken(
            token="-",  # noqa: S106 -- nothing needs it from here on
            client_id=id,
            scopes=[],
            expires_at=expires_at,
            resource=self._resource,
            subject=claims.get("sub"),
            claims={"iss": claims["iss"]} if claims else None,
        )
        return _Proof(at, access)

    async def find(self, request: Any) -> GatewayCaller:
        id = request.user.access_token.client_id
        self._callers.move_to_end(id)
        return self._callers[id]

    async def close(self) -> None:
        for caller in self._callers.values():
            await caller.plane.close()
        self._callers.clear()


class TokenReader:
    """Checks signature, issuer, audience and time of tokens, and knows the key of the plane for each person."""

    def __init__(self, settings: OAuthSettings, audience: str) -> None:
        self._settings, self._audience = settings, audience
        self._keys: jwt.PyJWKSet | None = None
        self._read_at = 0.0
        self._people: Mapping[str, str] = {
            subject: _variable(person.key_env) for subject, person in settings.people.items()
        }

    async def claims(self, token: str) -> dict[str, Any]:
        """Raises where it is not a token of this issuer for this gateway, now, of a person that the file names."""
        key_id = jwt.get_unverified_header(token).get("kid")
        keys = await self._public_keys()
        if key_id is not None:
            keys = [key for key in keys if key.key_id == key_id]
        if len(keys) != 1:
            raise jwt.InvalidTokenError("no public key of the issuer fits it")
        claims: dict[str, Any] = jwt.decode(
            token,
            keys[0],
            algorithms=ALGORITHMS,
            audience=self._audience,
            issuer=self._settings.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        if claims["sub"] not in self._people:
            raise jwt.InvalidTokenError("the gateway's file does not name its subject")
        return claims

    def key_of(self, claims: Mapping[str, Any]) -> str:
        return self._people[claims["sub"]]

    async def _public_keys(self) -> list[jwt.PyJWK]:
        if self._keys is None or time.monotonic() - self._read_at > KEYS_SECONDS:
            self._keys = jwt.PyJWKSet.from_json(await self._read_keys())
            self._read_at = time.monotonic()
        return self._keys.keys

    async def _read_keys(self) -> str:
        place = self._settings.jwks
        if not place.startswith(("http://", "https://")):
            return await asyncio.to_thread(Path(place).read_text, "utf-8")
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            answer = await client.get(place)
        answer.raise_for_status()
        if len(answer.content) > MAX_JWKS_BYTES:
            raise ValueError("the issuer's list of keys is too large")
        return answer.text


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise SetupError(
            f"The gateway's file names the key in `{name}`, which this environment does not have.",
            code="missing_secret",
            hint=f"Set {name} in the environment of `cortex mcp`, then start it again.",
        )
    return value
