from __future__ import annotations

from tests.acceptance.headings import HEADINGS, NOTES, Heading
from tests.acceptance.requirements import REQUIREMENTS, proofs

HEADING_COUNTS = {"S0": 1, "S1": 70, "S2": 37, "S3": 23, "S4": 44, "S5": 46}
"""Of each spec, as it was when they were listed: none is lost unseen."""


def test_every_requirement_is_proven_or_missing() -> None:
    proven = proofs()
    assert [r.id for r in REQUIREMENTS if r.id not in proven and not r.missing] == []
    assert [r.id for r in REQUIREMENTS if r.id in proven and r.missing] == [], "proven: remove the word"


def test_every_heading_of_the_specs_has_requirements_or_says_why_not() -> None:
    assert {spec: len(headings) for spec, headings in HEADINGS.items()} == HEADING_COUNTS
    ids = {r.id for r in REQUIREMENTS}
    faults = [f"{spec} {h.title}: {fault}" for spec in HEADINGS for h in HEADINGS[spec] for fault in _faults(h, ids)]
    assert faults == []


def _faults(heading: Heading, ids: set[str]) -> list[str]:
    unknown = [f"{id} is no requirement" for id in heading.ids if id not in ids]
    word, colon, reason = heading.note.partition(": ")
    if not heading.note:
        return unknown if heading.ids else ["neither a requirement nor a note"]
    if word not in NOTES:
        return [*unknown, f"a note begins with one of {NOTES}"]
    return unknown if reason or (word == "background" and not colon) else [*unknown, "the note does not say what"]


def test_no_heading_is_listed_twice() -> None:
    for headings in HEADINGS.values():
        assert len({heading.title for heading in headings}) == len(headings)


def test_every_requirement_of_a_spec_is_under_one_of_its_headings() -> None:
    cited = {(spec, id) for spec, headings in HEADINGS.items() for heading in headings for id in heading.ids}
    specs = [(r.id.partition(".")[0], r.id) for r in REQUIREMENTS if not r.id.startswith("D.")]
    assert [id for spec, id in specs if (spec, id) not in cited] == []


def test_every_proof_names_a_requirement() -> None:
    assert set(proofs()) - {r.id for r in REQUIREMENTS} == set()


def test_ids_are_unique() -> None:
    ids = [r.id for r in REQUIREMENTS]
    assert len(ids) == len(set(ids))


def test_what_only_make_soak_runs_proves_nothing() -> None:
    assert not [test for tests in proofs().values() for test in tests if "test_soak.py" in test]
