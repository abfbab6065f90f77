"""Requests as vendors sign them, whole or changed on the way."""

from __future__ import annotations

from datetime import timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cortex_plane.notify.model.channels import InboundRequest
from tests.channels.door import NOW


def discord_request(key: Ed25519PrivateKey, body: bytes, change: str) -> InboundRequest:
    timestamp = str(int(NOW.timestamp()))
    signature = key.sign(timestamp.encode() + body).hex()
    headers = {"x-signature-ed25519": signature, "x-signature-timestamp": timestamp}
    received_at = NOW + timedelta(seconds=2)
    match change:
        case "body":
            body += b" "
        case "timestamp":
            headers["x-signature-timestamp"] = str(int(timestamp) + 1)
        case "signature":
            headers["x-signature-ed25519"] = signature[:-2] + ("00" if signature[-2:] != "00" else "11")
        case "old":
            received_at += timedelta(minutes=16)
        case "missing":
            headers = {}
    return InboundRequest(method="POST", query={}, headers=headers, body=body, received_at=received_at)
