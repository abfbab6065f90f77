"""Atlas files as files: YAML and JSON alike, one digest for one content, and nothing that makes a reader suffer."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cortex_plane.gates.files import atlases as files
from cortex_plane.gates.files.atlases import compiled, read
from cortex_plane.gates.model import atlases
from cortex_plane.gates.model.atlases import MAX_ATLAS_BYTES, MAX_CONTEXT, MAX_GATES
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.documents import Bounds
from cortex_plane.kernel.errors import InvalidInput, TooLarge
from tests.gates.files import BODY, EXAMPLES, HEAD, SPEC, atlas, below, loaded
from tests.gates.test_atlases import CONFIG


def refusal(text: str, name: str = "atlas.yaml") -> str:
    with pytest.raises(InvalidInput) as refused:
        read(text, name=name)
    assert refused.value.code == "invalid_atlas"
    return refused.value.message


def _shuffled(value: Any, seed: random.Random) -> Any:
    """The same, with the keys of its objects in another order."""
    if isinstance(value, list):
        return [_shuffled(each, seed) for each in value]
    if not isinstance(value, dict):
        return value
    items = [(key, _shuffled(each, seed)) for key, each in value.items()]
    seed.shuffle(items)
    return dict(items)


# Formats and digests ---------------------------------------------------------------------------------------------


@pytest.mark.proves("D.309")
@pytest.mark.parametrize(
    "text", [SPEC.read_text(), (EXAMPLES / "acme-support.yaml").read_text(), below(CONFIG)], ids=["spec", "ours", "config"]
)  # fmt: skip
def test_the_same_content_has_the_same_digest_however_it_is_written(text: str) -> None:
    found = read(text)
    plain = json.loads(found.manifest)
    assert found.atlas.digest == hashlib.sha256(found.manifest).hexdigest()
    assert found.manifest == canonical(plain), "as JSONB would give it back"
    seed = random.Random(7)
    written = [
        json.dumps(plain),
        json.dumps(_shuffled(plain, seed), indent=2),
        json.dumps(_shuffled(plain, seed), indent="\t", ensure_ascii=False),
        "\ufeff" + json.dumps(plain).replace(", ", ",\r\n\t"),
        f"# a comment\n{text}\n# another\n",
        text.replace("\n", "\r\n"),
    ]
    for other in written:
        assert read(other).atlas == found.atlas
        assert read(other).manifest == found.manifest
    assert read(text.replace("2.1.0", "2.1.1")).atlas.digest != found.atlas.digest


@pytest.mark.proves("D.309")
def test_both_names_of_a_trigger_are_the_same_content() -> None:
    def written(kind: str) -> str:
        return f"""\
        checkpoints:
          - {{checkpoint_id: g, mode: advisory, trigger: {{type: {kind}, patterns: [a]}}}}
        """

    assert loaded(written("keyword")).manifest == loaded(written("keyword_match")).manifest


@pytest.mark.proves("D.309")
def test_numbers_are_the_same_in_whatever_form() -> None:
    def digest(number: str) -> str:
        return atlas(f"""\
        checkpoints:
          - {{checkpoint_id: g, mode: advisory, trigger: {{type: custom, trigger_id: t, params: {{n: {number}}}}}}}
        """).digest

    assert len({digest(each) for each in ("5", "5.0", "+5", "5e0")}) == 1
    assert digest("-0.0") == digest("0")
    assert digest("5") != digest("'5'")


@pytest.mark.proves("D.314")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1, }', "2: this is not JSON: "),
        ('{\n  "a": [1, ]}', "2: this is not JSON: "),
        ('{\n  "a" 1}', "2: this is not JSON: expecting ':' delimiter."),
        ('{\n"a": 1\n"b": 2}', "3: this is not JSON: expecting ',' delimiter."),
        ('{"a": [1 2]}', "1: this is not JSON: expecting ',' delimiter."),
        ('{"a": 1}\n{"b": 2}', "2: this is not JSON: extra data."),
        ('{"a": 1', "1: this is not JSON: expecting ',' delimiter."),
        ('{"a":', "1: this is not JSON: expecting value."),
        ("{a: 1}", "1: this is not JSON: expecting property name"),
        ('{\n// no\n"a": 1}', "2: this is not JSON: expecting property name"),
        ('{"a": NaN}', "1: this is not JSON: NaN is not a word of JSON."),
        ('{"a": 01}', "1: this is not JSON: expecting ',' delimiter."),
        ('{"a": "\n"}', "1: this is not JSON: invalid control character"),
        ('{"a": "\\x"}', "1: this is not JSON: invalid \\escape"),
        ('{"a": ' + "9" * 5000 + "}", "1: this is not JSON: "),
        ('{\n"a": "\\u0000"}', "2: `a text` contains U+0000, which cannot be stored."),
        ('{"a": "\\ud800"}', "1: `a text` contains a lone surrogate, which is not valid Unicode."),
        ('{\n"name": "a",\n"name": "b"}', "3: `name` stands here twice (first in line 2)."),
        ('{"a": ' + "[" * 60 + "]" * 60 + "}", "1: this is nested deeper than 40 levels."),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "1: this is nested deeper than 40 levels."),
    ],
)
def test_json_that_is_none_is_refused_with_its_line(text: str, said: str) -> None:
    assert f"my.json:{said}" in refusal(text, name="my.json")


@pytest.mark.proves("D.309", "D.314")
@pytest.mark.parametrize(
    "text",
    ["\U0001f600 é", "\x7f\x80\x85\x9f", "a \u2028 b\u2029", "\ufeff\ufffe\uffff", 'a "q" \\ \\ud83d /', "a: {b} # c"],
)
@pytest.mark.parametrize("escapes", [True, False])
def test_any_text_means_the_same_in_json(text: str, escapes: bool) -> None:
    part = {"checkpoint_id": "g", "mode": "advisory"}
    trigger = {"type": "custom", "trigger_id": "t", "params": {"text": text, text: [text]}}
    whole = {**json.loads(loaded().manifest), "checkpoints": [{**part, "trigger": trigger}]}
    (gate,) = read(json.dumps(whole, ensure_ascii=escapes), name="a.json").atlas.gates
    assert gate.trigger.params == trigger["params"]


@pytest.mark.proves("D.314")
def test_the_name_of_a_file_says_that_it_is_json() -> None:
    assert "not JSON" in refusal(HEAD, name="my.json")
    assert "an atlas is a mapping" in refusal("", name="my.json")


@pytest.mark.proves("D.314")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [1\n", "2: this is not YAML"),
        ("a: 1\n---\nb: 2\n", "2: a file holds one document, and here a second one begins."),
        ("name: a\nname: b\n", "2: `name` stands here twice (first in line 1)."),
        ("name: &a x\n", "1: anchors and aliases (& and *) are not read: write it out."),
        ("name: a\nversion: *a\n", "2: anchors and aliases (& and *) are not read: write it out."),
        ("name: &a\n  - *a\n", "1: anchors and aliases (& and *) are not read: write it out."),
        ("name: !!python/object/apply:os.system [ls]\n", "1: the tag tag:yaml.org,2002:python/object/apply:os.system"),
        ("name: !mine x\n", "1: the tag !mine is not read: leave it out."),
        ("? [a, b]\n: c\n", "1: a key must be a word."),
        ("name: " + "[" * 60 + "]" * 60, "1: this is nested deeper than 40 levels."),
        ('name: x\ndescription: "\\0"\n', "2: `a text` contains U+0000"),
    ],
)  # fmt: skip
def test_yaml_that_hides_something_is_refused_with_its_line(text: str, said: str) -> None:
    assert f"atlas.yaml:{said}" in refusal(text)


@pytest.mark.proves("D.314")
def test_a_bomb_of_aliases_is_refused_at_its_first_anchor() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    assert refusal(bomb).startswith("atlas.yaml:1: anchors and aliases")


# Limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.315")
@pytest.mark.parametrize("name", ["atlas.yaml", "atlas.json"])
def test_a_file_beyond_its_limit_is_not_read(name: str) -> None:
    with pytest.raises(TooLarge, match=f"the limit is {MAX_ATLAS_BYTES}"):
        read("#" * (MAX_ATLAS_BYTES + 1), name=name)


@pytest.mark.proves("D.315")
@pytest.mark.parametrize("text", ["a: [1, 2, 3, 4, 5]\n", '{"a": [1, 2, 3, 4, 5]}'])
def test_a_file_of_too_many_values_is_not_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BOUNDS", Bounds(1000, nodes=6))
    with pytest.raises(TooLarge, match="more than 6 values"):
        read(text)


@pytest.mark.proves("D.315")
def test_a_context_of_two_megabytes_is_refused_and_the_largest_is_read() -> None:
    def written(size: int) -> str:
        return f"context_blocks:\n  - {{context_id: a, content: {'x' * size}}}\n"

    said = refusal(below(written(2 * 1024 * 1024)))
    assert said == f"atlas.yaml:7: `content` has 2097152 characters; the limit is {MAX_CONTEXT}."
    assert len(atlas(written(MAX_CONTEXT)).contexts[0].content) == MAX_CONTEXT
    assert "the limit is" in refusal(below(written(MAX_CONTEXT + 1)))


@pytest.mark.proves("D.315")
def test_more_gates_than_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from cortex_plane.gates.files import checks

    monkeypatch.setattr(checks, "MAX_GATES", 3)
    gates = "\n".join(f"  - {{checkpoint_id: g{n}, trigger: {{type: interactive}}, mode: advisory}}" for n in range(3))
    part = f"context_blocks: [{{context_id: c, content: x}}]\ncheckpoints:\n{gates}\n"
    assert f"{BODY + 1}: the atlas has 4 gates; the limit is 3." in refusal(below(part))


def _large(count: int, wrong: str = "") -> str:
    """As JSON, which is the fastest to write here."""
    head = orjson.loads(loaded().manifest)
    gates: list[dict[str, Any]] = [
        {
            "checkpoint_id": f"gate-{n}", "trigger": {"type": "action_pre", "patterns": [f"svc{n}.*"]},
            "mode": "blocking", "audience": "human",
        }
        for n in range(count)
    ]  # fmt: skip
    if wrong:
        gates[-1][wrong] = []
    return orjson.dumps({**head, "checkpoints": gates}).decode()


@pytest.mark.proves("D.315")
def test_as_many_gates_as_may_be_are_read_and_compiled_and_one_fault_among_them_is_found() -> None:
    found = read(_large(MAX_GATES)).atlas
    assert len(found.gates) == MAX_GATES
    assert found.gates[-1].gate_id == f"gate-{MAX_GATES - 1}"
    assert "`questionz` is not a key of a checkpoint; did you mean `questions`?" in refusal(_large(1_000, "questionz"))


@pytest.mark.proves("D.315")
def test_a_file_that_is_nothing_but_faults_is_refused_with_the_first_of_them() -> None:
    text = HEAD + "".join(f"key{n}: 1\n" for n in range(15_000))
    said = refusal(text).splitlines()
    assert len(said) == 11
    assert said[0].startswith("atlas.yaml:6: `key0` is not a key of an atlas.")


# Whatever comes --------------------------------------------------------------------------------------------------

_SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["session_start", "blocking", "a.b", "*", "on_match", "regex", "(", "boolean", "1.0", "x" * 300])
)  # fmt: skip
_WORDS = sorted(
    {
        "atlas_version", "atlas_id", "version", "name", "steward", "checkpoints", "capabilities", "context_blocks",
        "policies", "actions", "checkpoint_config", "checkpoint_id", "trigger", "type", "mode", "questions",
        "question_id", "question", "response_type", "validation", "guidance", "content", "patterns", "mappings",
        "inject_contexts", "context_id", "capability_id", "action_id", "policy_id", "parameters_schema", "schema",
        "keyword_match", "action_pre", "budget", "id", "params", "access", "options", "inject_mode", "keywords",
    }
)  # fmt: skip
_TREES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=30,
)


def _reads_or_refuses(text: str, name: str) -> None:
    try:
        found = read(text, name=name)
    except (InvalidInput, TooLarge):
        return
    assert compiled(found.manifest) == found.atlas
    assert canonical(orjson.loads(found.manifest)) == found.manifest


@pytest.mark.proves("D.316")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tree=_TREES, section=st.sampled_from(_WORDS))
def test_any_tree_is_an_atlas_or_is_refused(tree: Any, section: str) -> None:
    head = json.loads(loaded().manifest)
    for whole in (tree, {**head, section: tree}, {**head, "checkpoints": [tree]}):
        text = json.dumps(whole)
        _reads_or_refuses(text, "any.json")
        _reads_or_refuses(text, "any.yaml")


@pytest.mark.proves("D.316")
@settings(max_examples=100, deadline=None)
@given(
    part=st.text(max_size=200),
    at=st.integers(0, 3000),
    cut=st.integers(0, 30),
    name=st.sampled_from(["a.yaml", "a.json"]),
)
def test_any_damage_to_a_file_is_refused_or_harmless(part: str, at: int, cut: int, name: str) -> None:
    text = SPEC.read_text() if name == "a.yaml" else json.dumps(json.loads(read(SPEC.read_text()).manifest), indent=1)
    _reads_or_refuses(text[:at] + part + text[at + cut :], name)


def test_the_limits_are_those_of_the_domain() -> None:
    assert files.BOUNDS.bytes == atlases.MAX_ATLAS_BYTES
