"""The key that signs credentials: lookups, and MACs over what a credential row says."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import orjson

KEY_BYTES: Final = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class MacKind(StrEnum):
    """What a MAC is about. The same fields of two kinds have different MACs."""

    KEY = "key"
    BROWSER_SESSION = "browser_session"
    LOGIN_LINK = "login_link"
    ENROLMENT_CODE = "enrolment_code"
    APPROVAL_TOKEN = "approval_token"  # noqa: S105
    IDENTITY_CODE = "identity_code"
    MAPPING = "mapping"
    POLICY_VERSION = "policy_version"
    POLICY_IN_FORCE = "policy_in_force"
    ATLAS_VERSION = "atlas_version"


COVERED: Final[Mapping[MacKind, tuple[str, ...]]] = {
    MacKind.KEY: (
        "org_id", "id", "user_account_id", "kind", "roles", "permissions", "platform", "expires_at", "secret_hash",
    ),
    MacKind.BROWSER_SESSION: ("org_id", "id", "user_account_id", "key_id", "expires_at", "secret_hash"),
    MacKind.LOGIN_LINK: ("org_id", "id", "user_account_id", "key_id", "expires_at", "secret_hash"),
    MacKind.ENROLMENT_CODE: ("org_id", "id", "user_account_id", "issuer_id", "key_id", "expires_at", "code_hash"),
    MacKind.APPROVAL_TOKEN: (
        "org_id", "id", "user_account_id", "approval_id", "version", "input_hash", "expires_at", "token_hash",
    ),
    MacKind.IDENTITY_CODE: ("org_id", "id", "user_account_id", "mapping_id", "purpose", "expires_at", "code_hash"),
    MacKind.MAPPING: ("org_id", "id", "connection_id", "channel_user_id", "user_account_id", "verified"),
    MacKind.POLICY_VERSION: ("org_id", "version", "rows_digest"),
    MacKind.POLICY_IN_FORCE: ("org_id", "policy_version"),
    MacKind.ATLAS_VERSION: ("org_id", "atlas_id", "version", "number", "digest", "access", "api_keys", "retired"),
}  # fmt: skip
"""The columns that each MAC covers. The lookup is one of them: else somebody could put theirs into another's row."""

_FIELDS = {kind: itemgetter(*columns) for kind, columns in COVERED.items()}


class Forged(Exception):
    """A row that the plane did not write as it stands."""

    def __init__(self, kind: MacKind, org_id: UUID, id: UUID | str) -> None:
        super().__init__(f"the MAC of this {kind} is false")
        self.kind = kind
        self.org_id = org_id
        self.id = id


class CredentialKey:
    """The open key. It is random, and kept sealed with the master key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a credential key has {KEY_BYTES} bytes")
        self._lookup = key
        # Of its own, so that no lookup can stand for a MAC.
        self._mac = hmac.digest(key, b"cortex credential mac", "sha256")

    def lookup(self, secret_hash: bytes) -> bytes:
        """By what a credential is found: an HMAC of its SHA-256."""
        return hmac.digest(self._lookup, secret_hash, "sha256")

    def mac(self, kind: MacKind, row: Mapping[str, Any]) -> bytes:
        """Over the columns of ``row`` that `COVERED` names. Values stand in a JSON array, so none runs into the next."""
        text = orjson.dumps((kind, *_FIELDS[kind](row)), default=_plain, option=orjson.OPT_PASSTHROUGH_DATETIME)
        return hmac.digest(self._mac, text, "sha256")

    def is_true(self, kind: MacKind, row: Mapping[str, Any], mac: bytes | None) -> bool:
        try:
            return mac is not None and hmac.compare_digest(self.mac(kind, row), mac)
        except TypeError:  # a time without end, which the plane never writes
            return False

    def require(self, kind: MacKind, row: Mapping[str, Any], mac: bytes | None) -> None:
        """Raises ``Forged`` where the row is not as the plane wrote it."""
        if not self.is_true(kind, row, mac):
            raise Forged(kind, row["org_id"], row["id"])


def _plain(value: object) -> object:
    if isinstance(value, UUID):  # the driver's own, which the encoder does not know; the most frequent, so the first
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    raise TypeError(f"no MAC covers a {type(value).__name__}")


def rows_digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Of the rows of a version of policies. What is null is left out, so that a column which a later release adds changes none."""
    contents = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return hashlib.sha256(orjson.dumps(contents, default=_plain, option=orjson.OPT_SORT_KEYS)).hexdigest()
