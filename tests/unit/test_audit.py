from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from cortex_plane.domain.access import Actor, ActorKind
from cortex_plane.domain.audit import (
    GENESIS,
    AuditEntry,
    ChainHead,
    ChainVerifier,
    Fact,
    Fault,
    chain_hash,
    shown,
)
from cortex_plane.domain.canonical import canonical

CHAIN = UUID(int=9)
START = datetime(2026, 1, 1, tzinfo=UTC)


def chain(length: int) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    previous = GENESIS
    for seq in range(1, length + 1):
        body = canonical({"action": f"act_{seq}", "data": {"n": seq}})
        at = START + timedelta(microseconds=seq)
        body_hash = hashlib.sha256(body).digest()
        previous = chain_hash(previous, seq, at, body_hash)
        entries.append(
            AuditEntry(
                chain_id=CHAIN, session_id=None, seq=seq, action=f"act_{seq}", body=body, body_hash=body_hash,
                hash=previous, created_at=at,
            )
        )  # fmt: skip
    return entries


def first_fault(entries: list[AuditEntry], head: tuple[int, bytes]) -> Fault | None:
    verifier = ChainVerifier(CHAIN)
    for entry in entries:
        fault = verifier.follow(entry)
        if fault:
            return fault
    seq, digest = head
    return verifier.finish(ChainHead(chain_id=verifier.chain_id, seq=seq, hash=digest))


def test_a_whole_chain_verifies_and_so_does_an_empty_one() -> None:
    entries = chain(5)
    assert first_fault(entries, (5, entries[-1].hash)) is None
    assert first_fault([], (0, GENESIS)) is None


@pytest.mark.parametrize("at", range(5))
def test_any_change_to_any_entry_is_found_there(at: int) -> None:
    entries = chain(5)
    head = (5, entries[-1].hash)
    other = canonical({"action": entries[at].action, "data": {"n": 99}})
    changes = [
        replace(entries[at], body=other),
        replace(entries[at], body=other, body_hash=hashlib.sha256(other).digest()),
        replace(entries[at], action="other"),
        replace(entries[at], created_at=entries[at].created_at + timedelta(microseconds=1)),
        replace(entries[at], hash=bytes(32)),
        replace(entries[at], body=None, body_hash=bytes(32)),
    ]
    for changed in changes:
        fault = first_fault([*entries[:at], changed, *entries[at + 1 :]], head)
        assert fault is not None
        assert (fault.chain_id, fault.seq) == (CHAIN, at + 1)
    missing = first_fault([*entries[:at], *entries[at + 1 :]], head)
    assert missing is not None
    assert missing.seq == at + 1


def test_an_entry_added_or_put_elsewhere_is_found() -> None:
    entries = chain(3)
    assert first_fault(entries, (2, entries[1].hash)) is not None
    assert first_fault([entries[0], entries[0]], (1, entries[0].hash)) is not None
    assert first_fault([entries[1], entries[0]], (2, entries[1].hash)) is not None
    forged = chain(4)[3]
    assert first_fault([*entries, forged], (3, entries[-1].hash)) is not None
    assert first_fault(entries, (3, bytes(32))) == Fault(
        chain_id=CHAIN, seq=3, reason="the head holds another hash"
    )


def test_an_erased_body_keeps_the_chain() -> None:
    entries = chain(3)
    erased = replace(entries[1], body=None)
    assert first_fault([entries[0], erased, entries[2]], (3, entries[2].hash)) is None
    assert shown(erased).body is None
    assert shown(entries[1]).body == {"action": "act_2", "data": {"n": 2}}
    assert shown(entries[1]).hash == entries[1].hash.hex()


def test_times_before_1970_and_far_away_have_a_hash() -> None:
    for moment in (datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)):
        assert len(chain_hash(GENESIS, 2**62, moment, bytes(32))) == 32


def test_a_fact_names_who_did_what() -> None:
    actor = Actor(
        org_id=UUID(int=1), key_id=UUID(int=2), kind=ActorKind.SERVICE, name="bot", roles=frozenset()
    )
    fact = Fact.of(actor, "team_created", team="t")
    assert fact.action == "team_created"
    assert fact.body == canonical(
        {
            "action": "team_created",
            "actor": {"kind": "service", "name": "bot", "key": str(UUID(int=2)), "account": None},
            "data": {"team": "t"},
        }
    )
