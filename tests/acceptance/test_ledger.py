from __future__ import annotations

from tests.acceptance.requirements import REQUIREMENTS, proofs


def test_every_requirement_is_proven() -> None:
    proven = proofs()
    assert [r.id for r in REQUIREMENTS if r.id not in proven] == []


def test_every_proof_names_a_requirement() -> None:
    assert set(proofs()) - {r.id for r in REQUIREMENTS} == set()


def test_ids_are_unique() -> None:
    ids = [r.id for r in REQUIREMENTS]
    assert len(ids) == len(set(ids))
