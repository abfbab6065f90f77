"""Receipts: whatever is changed in one is found, and one lets exactly one thing be sent."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice, GrantedUnder, StandingApproval
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies.model.policies import Template
from cortex_plane.proof.model import Receipt, to_base64
from cortex_plane.proof.rules.receipts import (
    CARD,
    SHAPE,
    Stamp,
    as_file,
    card_digest,
    check_file,
    parse_receipt,
    receipt_body,
    why_not_sent,
    why_not_standing,
    yes_of,
)
from tests.fixtures.proofs import ADA, MALLORY, ORG, SESSIONS, START, Hand, decided, receipt_facts

CALL = UUID(int=61)


def standing(**changes: Any) -> StandingApproval:
    """Given by Ada together with the approval of the receipt."""
    given: dict[str, Any] = {
        "id": UUID(int=71), "session_id": SESSIONS[0], "agent": "shipper", "tool_name": "ship", "tool_digest": "a" * 64,
        "input_hash": "b" * 64, "condition": "args.n < 3", "max_calls": 3, "used_calls": 1,
        "expires_at": START + timedelta(hours=2), "granted_by": "Ada", "granted_by_id": UUID(int=51),
        "required": GrantedUnder(rule="org:ask", template=Template.DEV_ONLY, clearance=2), "approval_id": UUID(int=21),
        "reason": None, "revoked_at": None, "revoked_by": None, "revocation_reason": None, "created_at": START,
        "last_used_at": None, "owner_id": None,
    }  # fmt: skip
    return StandingApproval(**given | changes)


def body(choice: Choice = Choice.APPROVED, **changes: Any) -> bytes:
    facts = receipt_facts(**{name: changes.pop(name) for name in ("expires_at",) if name in changes})
    approval = decided(status=ApprovalStatus(choice.value), **changes)
    return receipt_body(ORG, approval, facts, [CALL], ADA.id, standing())


def filed(content: bytes, hand: Hand = ADA, signed: bytes | None = None) -> dict[str, Any]:
    receipt = Receipt(
        approval_id=UUID(int=21), body=content.decode(), signature=to_base64(hand.private.sign(signed or content)),
        public_key=to_base64(hand.public), key_id=hand.id, fingerprint=hand.fingerprint, created_at=START,
    )  # fmt: skip
    file: dict[str, Any] = json.loads(as_file(receipt))
    return file


def checked(file: dict[str, Any], trusted: str | None = None) -> str | None:
    return check_file(json.dumps(file).encode(), trusted).fault


@pytest.mark.proves("D.171")
def test_a_receipt_says_everything_and_verifies_without_the_plane() -> None:
    found = check_file(json.dumps(filed(body())).encode(), ADA.fingerprint)
    assert found.fault is None
    says = found.says
    assert says.keys() == SHAPE.keys()
    assert (says["decision"], says["by"]["name"], says["via"]) == ("approved", "Ada", "api")
    assert says["tool"] == {"name": "ship", "digest": "a" * 64}
    assert says["arguments"] == {"digest": "b" * 64, "original_digest": "c" * 64}
    assert says["policy"] == {"rule": "org:ask", "version": "4.1", "file_digest": "d" * 64, "self_approval": False}
    assert says["card"] == {"digest": card_digest(decided())}
    assert (says["calls"], says["votes"][0]["by"]["name"]) == ([str(CALL)], "Ada")
    assert says["delegations"][0]["from"]["name"] == "Bo"
    assert says["checkpoints"] == [{"job": str(UUID(int=31)), "step_index": 0, "crc32": 7, "mac": "e" * 64}]
    assert says["decided_at"] == "2026-01-01T12:05:00.000000Z"
    assert body() == canonical(says), "one meaning, one spelling"


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for name, part in value.items() for leaf in _leaves(part, (*path, name))]
    if isinstance(value, list):
        return [leaf for n, part in enumerate(value) for leaf in _leaves(part, (*path, n))]
    return [path]


def _changed(says: dict[str, Any], path: tuple[Any, ...]) -> bytes:
    copy = json.loads(json.dumps(says))
    place = copy
    for step in path[:-1]:
        place = place[step]
    old = place[path[-1]]
    place[path[-1]] = (not old) if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old}x"
    return canonical(copy)


@pytest.mark.proves("D.171")
@pytest.mark.parametrize("path", _leaves(parse_receipt(body())), ids=lambda path: ".".join(map(str, path)))
def test_every_field_is_covered_by_the_signature(path: tuple[Any, ...]) -> None:
    says = parse_receipt(body())
    assert says is not None
    fault = checked(filed(_changed(says, path), signed=body()))
    assert fault is not None
    assert "its signature is false" in fault


@pytest.mark.proves("D.171")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_bit_of_body_or_signature_is_found(data: st.DataObject) -> None:
    signature, content = bytearray(ADA.private.sign(body())), bytearray(body())
    changed = data.draw(st.sampled_from([signature, content]))
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    file = filed(body()) | {"signature": to_base64(bytes(signature))}
    try:
        file["body"] = bytes(content).decode()
    except UnicodeDecodeError:
        return
    assert checked(file) is not None


def test_another_key_is_found_where_the_right_one_is_named() -> None:
    forged = filed(body(), MALLORY)
    assert checked(forged) is None, "without a key to trust it is only known to be somebody's"
    assert "another key than the one you trust" in (checked(forged, ADA.fingerprint) or "")
    dressed = forged | {"fingerprint": ADA.fingerprint}
    assert "fingerprint is not that of its key" in (checked(dressed, ADA.fingerprint) or "")
    mixed = forged | {"public_key": filed(body())["public_key"], "fingerprint": ADA.fingerprint}
    assert "signature is false" in (checked(mixed, ADA.fingerprint) or "")


def of_version_1(content: bytes) -> bytes:
    """The receipt as planes wrote it before it named its key and whether its policy lets those who shaped a call approve it."""
    says = json.loads(content)
    del says["key_id"], says["policy"]["self_approval"]
    return canonical({**says, "version": 1})


@pytest.mark.proves("D.171", "D.599")
def test_key_id_of_the_file_must_be_the_signed_one() -> None:
    renamed = filed(body()) | {"key_id": str(UUID(int=99))}
    assert "`key_id` is not the one that was signed" in (checked(renamed, ADA.fingerprint) or "")
    stamp = replace(stamped(body()), key_id=UUID(int=99))
    assert yes_of(stamp, ORG) == "its receipt names another key than the one beside it"


@pytest.mark.proves("D.599")
def test_receipt_of_version_1_stays_valid() -> None:
    old = of_version_1(body())
    found = check_file(json.dumps(filed(old)).encode(), ADA.fingerprint)
    assert (found.fault, found.says["version"]) == (None, 1)
    assert refused(old) is None, "an approval of before the upgrade lets its call be sent"


def test_what_is_signed_and_no_receipt_is_not_taken_for_one() -> None:
    says = parse_receipt(body())
    assert says is not None
    strange = [
        b"{}", b"[]", b"\xc3\xa9", canonical({**says, "version": 3}), canonical({**says, "more": 1}),
        canonical({**says, "version": 1}), canonical({name: says[name] for name in says if name != "key_id"}),
        canonical({**says, "version": "2"}), canonical({**says, "version": [2]}),
        canonical({**says, "tool": "ship"}), canonical({**says, "votes": [{}]}), canonical({**says, "version": True}),
        canonical({**says, "format": "cortex-root"}), canonical({**says, "standing": {}}), canonical({**says, "standing": 1}),
    ]  # fmt: skip
    for content in strange:
        assert "not a receipt of this version" in (checked(filed(content)) or ""), content


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", b"[]", b"{}", b"\xff", b"{" * 10_000, json.dumps(filed(body()) | {"body": 1}).encode(),
        json.dumps(filed(body()) | {"signature": "!"}).encode(),
        json.dumps(filed(body()) | {"public_key": to_base64(b"short")}).encode(),
        json.dumps(filed(body()) | {"signature": filed(body())["signature"] + "\n"}).encode(),
        b" " * 5_000_000, json.dumps(filed(body()) | {"body": "\ud800"}).encode(),
    ],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_a_file_that_is_no_receipt_is_refused_with_what_to_do(content: bytes) -> None:
    with pytest.raises(InvalidInput) as raised:
        check_file(content)
    assert raised.value.code == "not_a_receipt"
    assert "--out FILE" in raised.value.hint


@pytest.mark.proves("D.170")
@pytest.mark.parametrize("name", CARD)
def test_the_card_digest_covers_what_was_shown(name: str) -> None:
    card = decided()
    old = getattr(card, name)
    new: Any = old + 1 if isinstance(old, int) else {"other": old} if isinstance(old, dict) else f"{old}!"
    assert card_digest(replace(card, **{name: new})) != card_digest(card)
    assert card_digest(decided()) == card_digest(card)


# Sending ---------------------------------------------------------------------------------------------------------


def stamped(content: bytes, signed: bytes | None = None, hand: Hand = ADA) -> Stamp:
    return Stamp(
        body=content, signature=hand.private.sign(signed or content), key_id=ADA.id, public_key=ADA.public, sealed=b""
    )  # fmt: skip


def refused(content: bytes, signed: bytes | None = None, hand: Hand = ADA, **changes: Any) -> str | None:
    stamp = stamped(content, signed, hand)
    asked: dict[str, Any] = {
        "org_id": ORG, "call_id": CALL, "tool_name": "ship", "tool_digest": "a" * 64, "input_hash": "b" * 64,
        "now": START,
    }  # fmt: skip
    return why_not_sent(stamp, **asked | changes)


@pytest.mark.proves("D.172")
def test_a_receipt_lets_exactly_its_call_be_sent() -> None:
    assert refused(body()) is None
    for changes, reason in (
        ({"org_id": UUID(int=6)}, "another org"),
        ({"call_id": UUID(int=62)}, "another call"),
        ({"tool_name": "shop"}, "another tool"),
        ({"tool_digest": "f" * 64}, "another version"),
        ({"tool_digest": None}, "another version"),
        ({"input_hash": "f" * 64}, "other arguments"),
        ({"now": START + timedelta(hours=1)}, "the time of its receipt is over"),
    ):
        assert reason in (refused(body(), **changes) or "")
    assert refused(body(), now=None) is None
    assert "not say that it was approved" in (refused(body(Choice.DENIED)) or "")
    assert "the time of its receipt is over" in (refused(body(expires_at=None)) or "")
    assert "signature of its receipt is false" in (refused(body(), hand=MALLORY) or "")
    assert "signature of its receipt is false" in (refused(body(), signed=body(version=9)) or "")
    assert "cannot be read" in (refused(b"{}") or "")


@pytest.mark.proves("D.172")
def test_a_receipt_vouches_for_exactly_its_standing_approval() -> None:
    def why(content: bytes = body(), org_id: UUID = ORG, hand: Hand = ADA, **changes: Any) -> str | None:
        return why_not_standing(stamped(content, hand=hand), standing(**changes), org_id)

    assert why() is None
    assert why(used_calls=3, reason="enough", revoked_by="Bo") is None, "what becomes of it later is not signed"
    others: dict[str, dict[str, Any]] = {
        "id": {"id": UUID(int=72)}, "tool": {"tool_name": "shop"}, "digest": {"tool_digest": "f" * 64},
        "input_hash": {"input_hash": None}, "condition": {"condition": None}, "max_calls": {"max_calls": None},
        "expires_at": {"expires_at": START + timedelta(hours=3)}, "by": {"granted_by_id": UUID(int=52)},
        "session": {"session_id": SESSIONS[1]}, "approval": {"approval_id": UUID(int=22)},
        "condition, max_calls": {"condition": "true", "max_calls": 4},
    }  # fmt: skip
    for name, changes in others.items():
        assert why(**changes) == f"its receipt says something else: {name}"
    says = parse_receipt(body())
    assert says is not None
    assert why(canonical({**says, "standing": None})) == "its receipt is for one call, and for no more"
    assert why(body(Choice.DENIED)) == "its receipt does not say that it was approved"
    assert why(org_id=UUID(int=6)) == "its receipt is for another org"
    assert why(hand=MALLORY) == "the signature of its receipt is false"
    assert why(b"{}") == "its receipt cannot be read"
