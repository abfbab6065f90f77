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


def test_what_only_make_soak_runs_proves_nothing() -> None:
    assert not [test for tests in proofs().values() for test in tests if "test_soak.py" in test]
