"""What an atlas may not ask of the plane: refused when it is published, with its line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import pytest

from cortex_plane.gates.files.atlases import BOUNDS, read
from cortex_plane.gates.files.checks import MAX_GLOBS
from cortex_plane.gates.model.atlases import MAX_ANSWER
from cortex_plane.gates.rules.answers import MAX_MATCHED, check
from cortex_plane.gates.rules.index import MAX_EXPRESSIONS, MAX_KEYWORD_BYTES, MAX_PROGRAM, CompiledAtlases, expression
from cortex_plane.gates.rules.prompts import MAX_CARD, card
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import MAX_ATLASES
from tests.fixtures.counting import Searches

YES = {"question_id": "q", "question": "Well?", "response_type": "boolean"}


def text(**more: Any) -> str:
    head = {"atlas_version": "1.0", "atlas_id": "a.b", "version": "1", "name": "n", "steward": {"id": "s", "name": "s"}}
    return orjson.dumps(head | more).decode()


def gates(number: int, kind: str, *, patterns: tuple[str, ...] = (), **more: Any) -> list[dict[str, Any]]:
    trigger: dict[str, Any] = {"type": kind} | ({"patterns": list(patterns)} if patterns else {})
    given = {"mode": "blocking", "questions": [YES]} | more
    return [{"checkpoint_id": f"g{i}", "trigger": trigger, **given} for i in range(number)]


def refused(**more: Any) -> str:
    with pytest.raises(InvalidInput) as error:
        read(text(**more))
    assert error.value.code == "invalid_atlas"
    return error.value.message


_READS = """
import resource, sys
from cortex_plane.gates.files.atlases import read
head = '{"atlas_version": "1.0", "atlas_id": "a.b", "version": "1", "name": "n", "steward": {"id": "s", "name": "s"}'
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def said(text):
    try: read(head + ', "description": "' + text + '"}', name="a.json"); return "read"
    except Exception as error: return error.message[:40]
said("\\\\n" + "x" * 1000)
before = peak()
for text in ("\\\\n" + "x" * 4_000_000, "\\\\n" * 2_000_000):
    assert "description" in said(text), said(text)
print(peak() - before)
"""


@pytest.mark.proves("D.315")
def test_a_long_text_with_an_escape_takes_no_more_room_than_a_few_copies_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", _READS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unit = 1024 if sys.platform != "darwin" else 1
    assert int(done.stdout) * unit < 20 * 4_000_000, "a reader that can go back remembers 30 bytes for each character"


@pytest.mark.proves("D.315")
def test_values_have_an_end() -> None:
    assert BOUNDS.nodes == 200_000


@pytest.mark.proves("D.315")
@pytest.mark.parametrize("kind", ["policies", "capabilities", "action_pre", "action_post", "explicit_request"])
def test_patterns_with_a_star_have_an_end(kind: str) -> None:
    many = [f"a{n}.*" for n in range(MAX_GLOBS + 1)]
    assert read(text(**of_actions(many[:-1], kind))).atlas
    said = refused(**of_actions(many, kind))
    assert f"the atlas has {MAX_GLOBS + 1} patterns of actions with a star; the limit is {MAX_GLOBS}." in said
    assert read(text(**of_actions([each.replace("*", "b") for each in many], kind))).atlas, "names are no patterns"


@pytest.mark.proves("D.315")
def test_keywords_have_an_end() -> None:
    def hears(size: int, number: int) -> list[dict[str, Any]]:
        trigger = {"type": "keyword", "patterns": [f"{n:03}".ljust(size, "x") for n in range(number)]}
        return [{"checkpoint_id": "g", "mode": "advisory", "trigger": trigger}]

    assert read(text(checkpoints=hears(1000, MAX_KEYWORD_BYTES // 1000))).atlas
    said = refused(checkpoints=hears(1000, MAX_KEYWORD_BYTES // 1000 + 5))
    assert said.count(f"bytes together; the limit is {MAX_KEYWORD_BYTES}.") == 1


@pytest.mark.proves("D.315")
def test_what_a_person_is_asked_must_fit_on_a_card() -> None:
    long = [{**YES, "question_id": f"q{i}", "question": "filler " * 60} for i in range(10)]
    said = refused(checkpoints=gates(1, "action_pre", patterns=("a.b",), audience="human", questions=long))
    assert f"and {MAX_CARD} fit: ask less, or more briefly." in said
    fits = gates(1, "action_pre", patterns=("a.b",), audience="human", questions=long[:9])
    assert len(card(read(text(checkpoints=fits)).atlas.gates)) <= MAX_CARD
    together = gates(2, "action_pre", patterns=("*",), audience="human", questions=long[:5])
    assert "a person would read" in refused(checkpoints=together)
    apart = gates(2, "action_pre", patterns=("a.*",), audience="human", questions=long[:5])
    assert read(text(checkpoints=apart)).atlas


@pytest.mark.proves("D.315", "D.347")
def test_a_person_reads_the_hints_too_and_they_must_fit_as_well() -> None:
    hinted = {**YES, "hint": "Look at the balance first."}
    (found,) = read(
        text(checkpoints=gates(1, "action_pre", patterns=("a.b",), audience="human", questions=[hinted]))
    ).atlas.gates
    assert "- Well? (Look at the balance first.)" in card([found])
    long = [{**YES, "question_id": f"q{i}", "hint": "filler " * 60} for i in range(10)]
    said = refused(checkpoints=gates(1, "action_pre", patterns=("a.b",), audience="human", questions=long))
    assert f"and {MAX_CARD} fit: ask less, or more briefly." in said


def words(*patterns: str) -> list[dict[str, Any]]:
    trigger = {"type": "keyword", "match_mode": "regex", "patterns": list(patterns)}
    return [{"checkpoint_id": "g", "mode": "advisory", "trigger": trigger}]


@pytest.mark.proves("D.352")
def test_the_expressions_of_an_atlas_have_an_end() -> None:
    def several(number: int) -> list[dict[str, Any]]:
        made = [f"w{i}x+" for i in range(number)]
        return [{**words(*made[at : at + 50])[0], "checkpoint_id": f"g{at}"} for at in range(0, len(made), 50)]

    assert read(text(checkpoints=several(MAX_EXPRESSIONS - 1))).atlas
    said = refused(checkpoints=several(MAX_EXPRESSIONS + 100))
    assert said.count(f"an atlas may have fewer than {MAX_EXPRESSIONS} different regular expressions") == 1
    large = refused(checkpoints=words(*(rf"\pL{i}" for i in range(20))))
    assert large.count("instructions together, and may have") == 1
    assert "pattern too large" in refused(checkpoints=words(r"\pL{200}1"))


def matching(pattern: str, number: int = 1, **rules: Any) -> list[dict[str, Any]]:
    asked = {"question": "Well?", "response_type": "text", "validation": {"pattern": pattern, **rules}}
    return gates(1, "session_start", questions=[{**asked, "question_id": f"q{i}"} for i in range(number)])


UNKIND = "[ab]*a[ab]{120}c"
"""It reads a text of a and b with all of its instructions at once."""


@pytest.mark.proves("D.352")
def test_what_the_questions_of_one_checkpoint_search_for_has_an_end() -> None:
    fits = MAX_PROGRAM // expression(UNKIND).programsize
    assert read(text(checkpoints=matching(UNKIND, fits))).atlas
    said = refused(checkpoints=matching(UNKIND, fits + 1))
    assert said.count(f"instructions together, and may have {MAX_PROGRAM}") == 1, "each reads an answer of its own"
    apart = [
        {**each, "checkpoint_id": f"g{n}"} for n in range(30) for each in matching(UNKIND, fits)
    ]  # fmt: skip
    assert read(text(checkpoints=apart)).atlas, "they are answered one by one"
    for rule in ("max_length", "min_length"):
        most = refused(checkpoints=matching("a", **{rule: MAX_MATCHED + 1}))
        assert f"of an answer that must match a `pattern`, and it has {MAX_MATCHED} characters at most" in most
        assert read(text(checkpoints=matching("a", **{rule: MAX_MATCHED}))).atlas


@pytest.mark.proves("D.352", "S5.201")
@pytest.mark.parametrize("number", [1, 3, MAX_ATLASES])
def test_what_searching_a_text_costs_grows_with_its_length_and_no_faster(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: instructions times characters, of which a million takes 8 ms at most."""
    searches = Searches(monkeypatch)
    size = expression(UNKIND, case_sensitive=False).programsize
    patterns = [UNKIND.replace("120", str(120 - i)) for i in range(MAX_PROGRAM // size)]
    made = [read(text(atlas_id=f"a.b{i}", checkpoints=words(*patterns))).atlas for i in range(number)]
    index = CompiledAtlases(made).keywords
    for said in ("ab" * 1_000, "a b\n" * 1_000, "ä b\n" * 1_000, "ab"):
        searches.cost = 0
        index.find(said)
        assert 0 < searches.cost <= 2 * number * MAX_PROGRAM * len(said), "as it is, and as people read it"
        assert index.is_quick(said) == (len(said) == 2)
    fits = MAX_PROGRAM // expression(UNKIND).programsize
    (asking,) = read(text(checkpoints=matching(UNKIND, fits))).atlas.gates
    for length in (MAX_MATCHED, MAX_MATCHED + 1, MAX_ANSWER, 10 * MAX_ANSWER):
        searches.cost = 0
        assert len(check(asking, {f"q{i}": "ab" * (length // 2) for i in range(fits)}, {})) == fits
        assert searches.cost <= MAX_PROGRAM * MAX_MATCHED


def of_actions(patterns: list[str], kind: str) -> dict[str, Any]:
    """In lists of a thousand, wherever patterns of actions may stand."""
    lists = [patterns[at : at + 1000] for at in range(0, len(patterns), 1000)]
    if kind == "policies":
        return {kind: [{"policy_id": f"p{i}", "type": "deny", "actions": each} for i, each in enumerate(lists)]}
    if kind == "capabilities":
        return {kind: [{"capability_id": f"c{i}", "actions": each} for i, each in enumerate(lists)]}
    asking = [gates(1, kind, patterns=tuple(each))[0] for each in lists]
    return {"checkpoints": [{**each, "checkpoint_id": f"g{i}"} for i, each in enumerate(asking)]}
