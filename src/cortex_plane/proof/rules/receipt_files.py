"""The file of a receipt: what somebody keeps, and how it is verified on a machine that has never heard of the plane."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.json_keys import unique
from cortex_plane.proof.model.audit import Receipt
from cortex_plane.proof.model.signing import KEY_BYTES, SIGNATURE_BYTES, fingerprint, from_base64, is_signed
from cortex_plane.proof.rules.receipts import names_key, said_by

MAX_FILE_BYTES = 4 * 1024 * 1024
IN_A_FILE = ("body", "signature", "public_key", "key_id", "fingerprint")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What became of a receipt that somebody verified."""

    says: dict[str, Any]
    """What it says; to be believed only where there is no fault."""
    fingerprint: str
    """Of the key that it names."""
    fault: str | None


def as_file(receipt: Receipt) -> bytes:
    """All that is needed to verify it elsewhere."""
    kept = {name: getattr(receipt, name) for name in IN_A_FILE} | {"key_id": str(receipt.key_id)}
    return orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def check_file(content: bytes, trusted: str | None = None) -> Checked:
    """Verify a receipt without the plane. ``trusted`` is the fingerprint of the key that must have signed it.

    Raises ``InvalidInput`` where this is no receipt at all.
    """
    kept = _opened(content)
    body = kept["body"].encode()
    public_key = from_base64(kept["public_key"], KEY_BYTES)
    signature = from_base64(kept["signature"], SIGNATURE_BYTES)
    if public_key is None or signature is None:
        raise _no_receipt("its key or its signature is no base64 of the right length")
    says = said_by(body)
    fault = None
    if fingerprint(public_key) != kept["fingerprint"]:
        fault = "its fingerprint is not that of its key"
    elif trusted is not None and kept["fingerprint"] != trusted:
        fault = f"it is signed with another key than the one you trust: {kept['fingerprint']}"
    elif not is_signed(public_key, signature, body):
        fault = "its signature is false: what it says was changed, or somebody else signed it"
    elif says is None:
        fault = "what was signed is not a receipt of this version"
    elif not names_key(says, kept["key_id"]):
        fault = "its `key_id` is not the one that was signed"
    return Checked(says=says or {}, fingerprint=kept["fingerprint"], fault=fault)


def _opened(content: bytes) -> dict[str, str]:
    if len(content) > MAX_FILE_BYTES:
        raise _no_receipt("it is too large")
    try:
        kept = orjson.loads(content)
        json.loads(content, object_pairs_hook=unique)
    except InvalidInput as error:
        raise _no_receipt(error.message.removesuffix(".")) from None
    except (orjson.JSONDecodeError, RecursionError):
        raise _no_receipt("it is not JSON") from None
    if not isinstance(kept, dict) or not all(isinstance(kept.get(name), str) for name in IN_A_FILE):
        raise _no_receipt(f"it lacks one of {', '.join(IN_A_FILE)}")
    return kept


def _no_receipt(why: str) -> InvalidInput:
    return InvalidInput(
        f"This is not the file of a receipt: {why}.",
        code="not_a_receipt",
        hint="Save one with `cortex approval receipt ID --out FILE`.",
    )
