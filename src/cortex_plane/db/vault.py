"""Secrets at rest: what the plane must be able to say again (signing secrets, private keys) is sealed with the master key.

What it only has to recognise (keys, tokens, cookies) is never kept, only its SHA-256.
"""

from __future__ import annotations

import hashlib
import secrets
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cortex_plane.kernel.errors import SetupError

NONCE_BYTES = 12
FORMAT = b"\x01"


class Vault:
    """Seals for one org and one purpose: what was sealed elsewhere does not open here."""

    def __init__(self, master_key: bytes) -> None:
        self._key = master_key

    def seal(self, org_id: UUID, purpose: str, secret: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return FORMAT + nonce + self._cipher(org_id).encrypt(nonce, secret, purpose.encode())

    def open(self, org_id: UUID, purpose: str, sealed: bytes) -> bytes:
        nonce, body = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            if sealed[:1] != FORMAT:
                raise InvalidTag
            return self._cipher(org_id).decrypt(nonce, body, purpose.encode())
        except InvalidTag:
            raise SetupError(
                "A sealed secret does not open: it was sealed with another master key, or was changed.",
                code="wrong_master_key",
                hint="Start every process of the plane with the same CORTEX_MASTER_KEY.",
            ) from None

    def checkpoint_key(self, org_id: UUID) -> bytes:
        """Each org's checkpoints are sealed with a key of its own."""
        return hashlib.blake2b(org_id.bytes, key=self._key, digest_size=32, person=b"checkpoint").digest()

    def _cipher(self, org_id: UUID) -> AESGCM:
        return AESGCM(hashlib.blake2b(org_id.bytes, key=self._key, digest_size=32, person=b"vault").digest())
