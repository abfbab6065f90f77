"""Signed receipts of decisions, and their files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.approvals.model.approvals import Approval, Choice, Delegation, StandingApproval, Vote
from cortex_plane.kernel.canonical import canonical, iso, unique
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof.model import KEY_BYTES, SIGNATURE_BYTES, Receipt, fingerprint, from_base64, is_signed

FORMAT = "cortex-receipt"
VERSION = 2

_OR_NOTHING, _NUMBER = (str, type(None)), (int, type(None))
_PERSON = {"id": _OR_NOTHING, "name": str}
_STANDING = {
    "id": str, "tool": str, "digest": str, "input_hash": _OR_NOTHING, "condition": _OR_NOTHING, "max_calls": _NUMBER,
    "expires_at": str,
}  # fmt: skip
_POLICY = {"rule": str, "version": str, "file_digest": _OR_NOTHING}
_VERSION_1: dict[str, Any] = {
    "format": str,
    "version": int,
    "org": str,
    "approval": str,
    "approval_version": int,
    "kind": str,
    "session": str,
    "job": str,
    "agent": str,
    "tool": {"name": str, "digest": _OR_NOTHING},
    "arguments": {"digest": str, "original_digest": _OR_NOTHING},
    "calls": [str],
    "policy": _POLICY,
    "card": {"digest": str},
    "decision": str,
    "by": _PERSON,
    "via": str,
    "votes": [{"by": _PERSON, "decision": str, "via": str, "at": str}],
    "delegations": [{"from": _PERSON, "to": _PERSON, "automatic": bool, "at": str}],
    "checkpoints": [{"job": str, "step_index": _NUMBER, "crc32": _NUMBER, "mac": _OR_NOTHING}],
    "standing": (_STANDING, type(None)),
    "requested_at": str,
    "decided_at": str,
    "expires_at": _OR_NOTHING,
    "issued_at": str,
}
SHAPE: dict[str, Any] = {**_VERSION_1, "policy": {**_POLICY, "self_approval": bool}, "key_id": str}
"""The body, field by field. A list stands for any number of its one item, a tuple for one of its members."""
OF_CHANGES = 3
_OF_CHANGE: dict[str, Any] = {**SHAPE, **dict.fromkeys(("session", "job", "agent"), type(None))}
SHAPES = {1: _VERSION_1, VERSION: SHAPE, OF_CHANGES: _OF_CHANGE}
"""By version. Version 3 is that of changes of rules, which belong to no job. Receipts of version 1 name neither the key that signed them nor whether whoever shaped the call was allowed to
approve it; they stay valid."""


CARD = (
    "version", "tool_name", "tool_digest", "target", "arguments", "invocations", "risk", "action_summary", "action",
    "details", "agent_says", "asked_for", "question", "rule", "required_clearance",
)  # fmt: skip


def card_digest(approval: Approval) -> str:
    """SHA-256 of the card as it was decided, an edit included: whoever has the approval can compute it again."""
    return hashlib.sha256(canonical({name: getattr(approval, name) for name in CARD})).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiptFacts:
    """What a receipt says besides the approval, as its decision left it."""

    original_hash: str | None
    policy_digest: str | None
    delegations: list[Delegation]
    active_key: UUID | None
    expires_at: datetime | None = None
    votes: list[Vote] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """From which state each job goes on: its checkpoint, by checksum and by the code that only the plane can compute."""


def receipt_body(
    org_id: UUID, approval: Approval, facts: ReceiptFacts, calls: Sequence[UUID], key_id: UUID,
    standing: StandingApproval | None = None,
) -> bytes:  # fmt: skip
    """Canonical JSON: it is kept as bytes, and holds nothing that sorted keys alone would not spell in one way. Reasons stay out of it:
    they are people's words, which the trail can erase and this could not."""
    if approval.resolved_at is None:
        raise AssertionError("an approval that was decided has the time of its decision")
    decided_at, of_job = iso(approval.resolved_at), approval.job_id is not None
    return orjson.dumps(
        {
            "format": FORMAT,
            "version": VERSION if of_job else OF_CHANGES,
            "org": str(org_id),
            "approval": str(approval.id),
            "approval_version": approval.version,
            "kind": approval.kind.value,
            "session": str(approval.session_id) if of_job else None,
            "job": str(approval.job_id) if of_job else None,
            "agent": str(approval.agent_id) if of_job else None,
            "tool": {"name": approval.tool_name, "digest": approval.tool_digest},
            "arguments": {"digest": approval.input_hash, "original_digest": facts.original_hash},
            "calls": sorted(map(str, calls)),
            "policy": {
                "rule": approval.rule,
                "version": approval.policy_version,
                "file_digest": facts.policy_digest,
                "self_approval": approval.self_approval,
            },
            "card": {"digest": card_digest(approval)},
            "decision": approval.status.value,
            "by": _person(approval.resolved_by, approval.resolved_by_name),
            "via": str(approval.resolved_via),
            "votes": [
                {
                    "by": _person(vote.member_id, vote.member),
                    "decision": vote.decision.value,
                    "via": vote.channel.value,
                    "at": iso(vote.created_at),
                }
                for vote in facts.votes
            ],
            "delegations": [
                {
                    "from": _person(hop.from_member_id, hop.from_member),
                    "to": _person(hop.to_member_id, hop.to_member),
                    "automatic": hop.automatic,
                    "at": iso(hop.at),
                }
                for hop in facts.delegations
            ],
            "checkpoints": facts.checkpoints,
            "standing": {"id": str(standing.id), **standing.bounds()} if standing else None,
            "requested_at": iso(approval.requested_at),
            "decided_at": decided_at,
            "expires_at": iso(facts.expires_at) if facts.expires_at else None,
            "issued_at": decided_at,
            "key_id": str(key_id),
        },
        option=orjson.OPT_SORT_KEYS,
    )


def _person(id: UUID | None, name: str | None) -> dict[str, str | None]:
    return {"id": str(id) if id else None, "name": name}


def parse_receipt(body: bytes) -> dict[str, Any] | None:
    """What a body says; None where it is no receipt of a version that we know."""
    try:
        receipt = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    version = receipt.get("version") if isinstance(receipt, dict) else None
    shape = SHAPES.get(version) if type(version) is int else None
    is_known = shape is not None and _fits(receipt, shape) and receipt["format"] == FORMAT
    return receipt if is_known else None


def names_key(says: dict[str, Any], key_id: str) -> bool:
    """Whether a receipt was signed with the key that is kept beside it. Version 1 does not say."""
    return bool(says["version"] == 1 or says["key_id"] == key_id)


def _fits(value: Any, shape: Any) -> bool:
    if isinstance(shape, dict):
        return (
            isinstance(value, dict)
            and value.keys() == shape.keys()
            and all(_fits(value[name], part) for name, part in shape.items())
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return any(_fits(value, each) for each in shape)
    return type(value) is shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Stamp:
    """A receipt as the database keeps it, with the key that it names; both may have been tampered with."""

    body: bytes
    signature: bytes
    key_id: UUID
    public_key: bytes
    sealed: bytes
    """The private key: who holds the master key can tell by it whether the key is one of the plane's own."""


def yes_of(stamp: Stamp, org_id: UUID) -> dict[str, Any] | str:
    """What a receipt says that is true, of this org, and a yes; else why it is none."""
    if not is_signed(stamp.public_key, stamp.signature, stamp.body):
        return "the signature of its receipt is false"
    says = parse_receipt(stamp.body)
    if says is None:
        return "its receipt cannot be read"
    if not names_key(says, str(stamp.key_id)):
        return "its receipt names another key than the one beside it"
    if says["decision"] != Choice.APPROVED:
        return "its receipt does not say that it was approved"
    return says if says["org"] == str(org_id) else "its receipt is for another org"


def why_not_standing(stamp: Stamp, standing: StandingApproval, org_id: UUID) -> str | None:
    """Why the receipt of its request does not vouch for a standing approval as it stands here; None where it does."""
    says = yes_of(stamp, org_id)
    if isinstance(says, str):
        return says
    if says["standing"] is None:
        return "its receipt is for one call, and for no more"
    terms = {**says["standing"], **{name: says[name] for name in ("approval", "session")}, "by": says["by"]["id"]}
    here = {
        **standing.bounds(), "id": str(standing.id), "approval": str(standing.approval_id),
        "session": str(standing.session_id), "by": str(standing.granted_by_id),
    }  # fmt: skip
    other = sorted(name for name in here if terms[name] != here[name])
    return f"its receipt says something else: {', '.join(other)}" if other else None


def why_not_sent(
    stamp: Stamp,
    *,
    org_id: UUID,
    call_id: UUID,
    tool_name: str,
    tool_digest: str | None,
    input_hash: str,
    now: datetime | None,
) -> str | None:
    """Why this receipt does not let exactly this call be sent; None where it does. ``now`` is left out for a call that
    was sent in time before."""
    says = yes_of(stamp, org_id)
    if isinstance(says, str):
        return says
    if says["tool"] != {"name": tool_name, "digest": tool_digest}:
        return "its receipt is for another tool, or another version of it"
    if says["arguments"]["digest"] != input_hash:
        return "its receipt is for other arguments"
    if str(call_id) not in says["calls"]:
        return "its receipt is for another call"
    expires_at = says["expires_at"]
    if now is not None and (expires_at is None or datetime.fromisoformat(expires_at) <= now):
        return "the time of its receipt is over"
    return None


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
    content = {name: getattr(receipt, name) for name in IN_A_FILE} | {"key_id": str(receipt.key_id)}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def check_file(content: bytes, trusted: str | None = None) -> Checked:
    """Verify a receipt without the plane. ``trusted`` is the fingerprint of the key that must have signed it. Raises
    ``InvalidInput`` where this is no receipt at all."""
    receipt = _opened(content)
    body = receipt["body"].encode()
    public_key = from_base64(receipt["public_key"], KEY_BYTES)
    signature = from_base64(receipt["signature"], SIGNATURE_BYTES)
    if public_key is None or signature is None:
        raise _no_receipt("its key or its signature is no base64 of the right length")
    says = parse_receipt(body)
    fault = None
    if fingerprint(public_key) != receipt["fingerprint"]:
        fault = "its fingerprint is not that of its key"
    elif trusted is not None and receipt["fingerprint"] != trusted:
        fault = f"it is signed with another key than the one you trust: {receipt['fingerprint']}"
    elif not is_signed(public_key, signature, body):
        fault = "its signature is false: what it says was changed, or somebody else signed it"
    elif says is None:
        fault = "what was signed is not a receipt of this version"
    elif not names_key(says, receipt["key_id"]):
        fault = "its `key_id` is not the one that was signed"
    return Checked(says=says or {}, fingerprint=receipt["fingerprint"], fault=fault)


def _opened(content: bytes) -> dict[str, str]:
    if len(content) > MAX_FILE_BYTES:
        raise _no_receipt("it is too large")
    try:
        receipt = orjson.loads(content)
        json.loads(content, object_pairs_hook=unique)
    except InvalidInput as error:
        raise _no_receipt(error.message.removesuffix(".")) from None
    except (orjson.JSONDecodeError, RecursionError):
        raise _no_receipt("it is not JSON") from None
    if not isinstance(receipt, dict) or not all(isinstance(receipt.get(name), str) for name in IN_A_FILE):
        raise _no_receipt(f"it lacks one of {', '.join(IN_A_FILE)}")
    return receipt


def _no_receipt(why: str) -> InvalidInput:
    return InvalidInput(
        f"This is not the file of a receipt: {why}.",
        code="not_a_receipt",
        hint="Save one with `cortex approval receipt ID --out FILE`.",
    )
