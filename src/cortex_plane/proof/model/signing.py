"""Signatures that outlive the plane: Ed25519, one active key for each org, known by the SHA-256 of its public key.

What is signed is the exact bytes of a body, which is canonical JSON and says in its ``format`` what it is: a receipt can
never pass for a root.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

KEY_BYTES = 32
SIGNATURE_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """The public half of a key that an org signs with, or signed with."""

    id: UUID
    fingerprint: str
    """SHA-256 of the raw public key, in hex: what to write down, and to compare."""
    public_key: str
    """The 32 raw bytes in base64."""
    created_at: datetime
    retired_at: datetime | None
    """Since when it signs nothing new; what it signed before stays valid."""


def fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()


def is_signed(public_key: bytes, signature: bytes, body: bytes) -> bool:
    # Most commands never verify anything, and must not wait for this import.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, body)
    except (InvalidSignature, ValueError):
        return False
    return True


def to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def from_base64(text: str, length: int) -> bytes | None:
    """None where it is no base64, or not of that many bytes, or spelled in a second way."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if len(value) == length and to_base64(value) == text else None
