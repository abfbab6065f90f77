from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from cortex_plane.kernel.canonical import canonical
from cortex_plane.proof.model import (
    ERASED,
    GENESIS,
    AuditEntry,
    ChainHead,
    ChainVerifier,
    Fault,
    chain_hash,
    chain_hash_1,
    record_of,
)
from cortex_plane.tenancy.model.access import Actor, ActorKind, Fact

CHAIN = UUID(int=9)
JOB = UUID(int=10)
START = datetime(2026, 1, 1, tzinfo=UTC)


def chain(length: int, formats: str = "", erases: dict[int, list[dict[str, object]]] | None = None) -> list[AuditEntry]:
    """``formats``: of the first entries, one digit each; all others have format 2. ``erases``: what some entries erase."""
    entries: list[AuditEntry] = []
    previous = GENESIS
    for seq in range(1, length + 1):
        named = (erases or {}).get(seq)
        action = f"act_{seq}" if named is None else ERASED
        body = canonical({"action": action, "data": {"n": seq} if named is None else {"entries": named}})
        at = START + timedelta(microseconds=seq)
        body_hash = hashlib.sha256(body).digest()
        job = JOB if seq % 2 else None
        of_format = int(formats[seq - 1 : seq] or "2")
        if of_format == 1:
            previous = chain_hash_1(previous, seq, at, body_hash)
        else:
            previous = chain_hash(previous, seq, at, action, job, body_hash)
        entries.append(
            AuditEntry(
                chain_id=CHAIN, session_id=None, seq=seq, format=of_format, action=action, job_id=job, body=body,
                body_hash=body_hash, hash=previous, created_at=at,
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
        replace(entries[at], action="other", body=None),
        replace(entries[at], job_id=UUID(int=11)),
        replace(entries[at], format=1),
        replace(entries[at], format=3),
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
    assert first_fault(entries, (3, bytes(32))) == Fault(chain_id=CHAIN, seq=3, reason="the head holds another hash")


@pytest.mark.proves("D.601")
def test_a_body_is_erased_only_under_an_entry_that_names_it() -> None:
    entries = chain(5, erases={4: [{"seq": 2, "action": "act_2"}]})
    erased = [replace(each, body=None) if each.seq == 2 else each for each in entries]
    assert first_fault(erased, (5, entries[-1].hash)) is None
    more = [replace(each, body=None) if each.seq in (1, 3, 5) else each for each in erased]
    assert first_fault(more, (5, entries[-1].hash)) == Fault(
        chain_id=CHAIN, seq=1, reason="its body is gone, and no erase entry names it; so are 3, 5"
    )
    # Whoever erases the erase entry takes the explanation away.
    without = [replace(each, body=None) if each.seq == 4 else each for each in erased]
    fault = first_fault(without, (5, entries[-1].hash))
    assert fault is not None
    assert fault.seq == 2
    shown_body = record_of(erased[1]).body
    assert shown_body is None


@pytest.mark.proves("D.601")
def test_a_renamed_action_is_found_also_in_entries_of_format_1() -> None:
    entries = chain(4, formats="111", erases={4: [{"seq": 2, "action": "act_2"}]})
    head = (4, entries[-1].hash)
    assert first_fault(entries, head) is None
    renamed = [replace(each, action="other") if each.seq == 1 else each for each in entries]
    assert first_fault(renamed, head) == Fault(chain_id=CHAIN, seq=1, reason="its action differs from its body")
    erased = [replace(each, action="other", body=None) if each.seq == 2 else each for each in entries]
    assert first_fault(erased, head) == Fault(
        chain_id=CHAIN, seq=2, reason="its action differs from what erase entry 4 says of it"
    )


@pytest.mark.proves("D.600")
def test_the_format_of_a_chain_never_goes_back() -> None:
    for formats, fault in (("112", None), ("121", 3), ("211", 2)):
        entries = chain(3, formats=formats)
        found = first_fault(entries, (3, entries[-1].hash))
        assert (found and found.seq) == fault
    assert found is not None
    assert found.reason == "it has format 1, after one with format 2"


@pytest.mark.proves("D.601")
@pytest.mark.parametrize("body", [b"[]", b"nonsense", b"", b'{"action":"audit_erased"}',
    b'{"action":"audit_erased","data":{"entries":[1]}}', b'{"action":"audit_erased","data":{"entries":[{"seq":[]}]}}'])  # fmt: skip
def test_a_chained_body_that_the_plane_never_writes_is_named(body: bytes) -> None:
    body_hash = hashlib.sha256(body).digest()
    entry = AuditEntry(
        chain_id=CHAIN, session_id=None, seq=1, format=2, action=ERASED, job_id=None, body=body, body_hash=body_hash,
        hash=chain_hash(GENESIS, 1, START, ERASED, None, body_hash), created_at=START,
    )  # fmt: skip
    assert first_fault([entry], (1, entry.hash)) == Fault(
        chain_id=CHAIN, seq=1, reason="its body is not one that the plane writes"
    )


def test_entries_are_shown_with_their_bodies() -> None:
    entries = chain(3)
    assert record_of(entries[1]).body == {"action": "act_2", "data": {"n": 2}}
    assert record_of(entries[1]).hash == entries[1].hash.hex()


def test_times_before_1970_and_far_away_have_a_hash() -> None:
    for moment in (datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)):
        assert len(chain_hash(GENESIS, 2**62, moment, "act", None, bytes(32))) == 32


def test_a_fact_names_who_did_what() -> None:
    actor = Actor(org_id=UUID(int=1), key_id=UUID(int=2), kind=ActorKind.SERVICE, name="bot", roles=frozenset())
    fact = Fact.of(actor, "team_created", team="t")
    assert fact.action == "team_created"
    assert fact.body == canonical(
        {
            "action": "team_created",
            "actor": {"kind": "service", "name": "bot", "key": str(UUID(int=2)), "account": None},
            "data": {"team": "t"},
        }
    )
