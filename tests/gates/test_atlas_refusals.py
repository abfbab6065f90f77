"""Each way in which an atlas file can be wrong, with its line; and that the JSON Schema says the same where it can tell."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from cortex_plane.gates.files.atlases import read
from cortex_plane.gates.files.keys import ATLAS
from cortex_plane.gates.files.keys import schema as made_schema
from cortex_plane.gates.model.atlases import schema
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.shapes import ListOf, MapOf, Record, Shape, Tagged
from tests.gates.files import EXAMPLES, HEAD, SPEC, below
from tests.gates.test_atlases import CONFIG


@dataclass(frozen=True)
class Bad:
    part: str
    said: str
    """From its line on."""
    schema_tells: bool = True


def gate(rest: str) -> str:
    """A checkpoint from line 6 on; what is wrong with it begins in line 9 at the earliest."""
    return f"checkpoints:\n  - checkpoint_id: g\n    mode: blocking\n{rest}"


def asks(question: str) -> str:
    """A question in line 11."""
    return gate(f"    trigger: {{type: session_start}}\n    questions:\n      - {{question_id: q, {question}}}\n")


START = "    trigger: {type: session_start}\n"
YES = "    questions: [{question_id: q, question: Well, response_type: boolean}]\n"
TOLD = "checkpoints:\n  - checkpoint_id: g\n    trigger: {type: session_start}\n"
KEYS = [
    Bad("checkponts: []\n", "6: `checkponts` is not a key of an atlas; did you mean `checkpoints`?"),
    Bad("zzz: 1\n", "6: `zzz` is not a key of an atlas. Known are atlas_version, atlas_id"),
    Bad(gate("    triger: {type: session_start}\n"), "9: `triger` is not a key of a checkpoint; did you mean `trigger`?"),
    Bad(gate("    trigger: {type: session_strat}\n"), "9: `type` must be one of session_start"),
    Bad(gate("    trigger: {type: session_strat}\n"), "not `session_strat`; did you mean `session_start`?"),
    Bad(gate("    trigger: {}\n"), "9: a trigger needs `type`, and this one has none"),
    Bad(gate("    trigger: {type: session_start, patterns: [a]}\n"),
        "9: `patterns` is not a key of a trigger of the type session_start; it belongs to the type action_pre"),
    Bad(gate("    trigger: {type: action_pre}\n"), "9: a trigger of the type action_pre needs `patterns`"),
    Bad(gate("    trigger: {type: action_pre, patterns: []}\n"), "9: `patterns` must have at least 1 entry."),
    Bad(gate("    trigger: {type: action_pre, patterns: a.b}\n"), "9: `patterns` must be a list"),
    Bad(gate("    trigger: {type: action_pre, patterns: [Ticket.Delete]}\n"), "9: `patterns` must be the name of a tool"),
    Bad(gate("    trigger: {type: risk_threshold}\n"), "9: a trigger of the type risk_threshold needs `min_tier`"),
    Bad(gate("    trigger: {type: risk_threshold, min_tier: extreme}\n"), "9: `min_tier` must be one of low, medium"),
    Bad(gate("    trigger: {type: time_interval, seconds: 0}\n"), "9: `seconds` must be a number from 1 to 2.592e+06"),
    Bad(gate("    trigger: {type: time_interval, seconds: '300'}\n"), "9: `seconds` must be a number"),
    Bad(gate("    trigger: {type: count_interval, actions: 1.5}\n"), "9: `actions` must be a whole number"),
    Bad(gate("    trigger: {type: keyword, patterns: [a], match_mode: some}\n"), "9: `match_mode` must be one of any"),
    Bad(gate("    trigger: {type: keyword, patterns: [12]}\n"), "put it into quotes"),
    Bad(gate("    trigger: {type: keyword, patterns: [a], case_sensitive: 'no'}\n"), "9: `case_sensitive` must be true"),
    Bad(gate("    trigger: {type: custom}\n"), "9: a trigger of the type custom needs `trigger_id`"),
    Bad(gate("    trigger: {type: custom, trigger_id: a b}\n"), "9: `trigger_id` must be letters, digits"),
    Bad(gate("    trigger: {type: custom, trigger_id: a, params: [1]}\n"), "9: `params` must be a mapping."),
    Bad(gate("    trigger: session_start\n"), "9: `trigger` must be a trigger: a mapping with `type`."),
    Bad(gate(START + "    audience: robot\n"), "10: `audience` must be one of agent, human"),
    Bad(gate(START + "    max_attempts: 0\n"), "10: `max_attempts` must be a whole number from 1 to 100"),
    Bad(gate(START + "    priority: high\n"), "10: `priority` must be a whole number"),
    Bad(gate(START + "    force_sync_trace: 1\n"), "10: `force_sync_trace` must be true or false"),
    Bad(gate(START + "    questions: {}\n"), "10: `questions` must be a list"),
    Bad(gate(START + "    guidance: Hello\n"), "10: `guidance` must be `guidance`: a mapping with content"),
    Bad(gate(START + "    guidance: {format: html, content: x}\n"), "10: `format` must be one of text, markdown"),
    Bad(gate(START + "    guidance: {format: text}\n"), "10: `guidance` needs `content`"),
    Bad("checkpoints:\n  - trigger: {type: session_start}\n    mode: advisory\n", "7: a checkpoint needs `checkpoint_id`"),
    Bad("checkpoints:\n  - checkpoint_id: g\n    trigger: {type: session_start}\n", "7: a checkpoint needs `mode`"),
    Bad("checkpoints:\n  - checkpoint_id: a:b\n", "7: `checkpoint_id` must be letters, digits, dots"),
    Bad("checkpoints:\n  - checkpoint_id: a/b\n", "7: `checkpoint_id` must be letters, digits, dots"),
    Bad("checkpoints: [gate]\n", "6: `checkpoints` must be a checkpoint: a mapping"),
    Bad(asks("question: Well"), "11: a question needs `response_type`, and this one has none: one of text, boolean"),
    Bad(asks("question: Well, response_type: choice"), "11: a question of the response_type choice needs `options`"),
    Bad(asks("question: Well, response_type: choice, options: []"), "11: `options` must have at least 1 entry"),
    Bad(asks("question: Well, response_type: boolean, options: [a]"),
        "11: `options` is not a key of a question of the response_type boolean; it belongs to the response_type choice."),
    Bad(asks("question: Well, response_type: text, schema: {}"), "it belongs to the response_type json"),
    Bad(asks("question: Well, response_type: boolean, on_invalid: ignore"), "11: `on_invalid` must be one of retry"),
    Bad(asks("question: Well, response_type: number, validation: {min_length: 1}"),
        "11: `min_length` is not a key of the `validation` of a number question"),
    Bad(asks("question: Well, response_type: text, validation: {max_length: 0}"), "11: `max_length` must be a whole"),
    Bad(asks("question: Well, response_type: text, validation: {equals_argument: a b}"),
        "11: `equals_argument` must be the name of an argument, such as order_id"),
    Bad(asks("question: Well, response_type: boolean, validation: {equals_argument: a}"),
        "11: `equals_argument` is not a key of the `validation` of a boolean question"),
    Bad(asks("question: '  ', response_type: text"), "11: `question` must be a text with something in it."),
    Bad("capabilities: [{capability_id: a}]\n", "6: a capability needs `actions`"),
    Bad("context_blocks: [{context_id: a, content: x, inject_mode: sometimes}]\n", "6: `inject_mode` must be one of on_demand"),
    Bad("context_blocks: [{context_id: a, content: x, keywords: [a]}]\n",
        "6: `keywords` is not a key of a context block of the inject_mode on_demand; it belongs to the inject_mode on_match."),
    Bad("context_blocks: [{context_id: a, content: x, inject_mode: on_match}]\n", "needs `keywords`"),
    Bad("context_blocks: [{context_id: a, content: x, inject_mode: risk_based}]\n", "needs `min_tier`"),
    Bad("context_blocks: [{context_id: a, content: ''}]\n", "6: `content` must be a text with something in it."),
    Bad("policies: [{policy_id: p, type: rate_limit, actions: [a.b], max_calls: 3}]\n", "needs `window_seconds`"),
    Bad("policies: [{policy_id: p, type: budget, actions: [a.b]}]\n", "needs `max_calls`"),
    Bad("policies: [{policy_id: p, type: deny, actions: [a.b], max_calls: 3}]\n", "it belongs to the type rate_limit, budget"),
    Bad("policies: [{policy_id: p, type: forbid, actions: [a.b]}]\n", "6: `type` must be one of deny, requires_approval"),
    Bad("policies: [{policy_id: p, type: requires_approval, actions: [a.b], template: quick}]\n", "6: `template` must be"),
    Bad("actions: [{action_id: Ticket.Get}]\n", "6: `action_id` must be the name of a tool: lower case with dots"),
    Bad("actions: [{action_id: 'ticket.*'}]\n", "6: `action_id` must be the name of a tool"),
    Bad("actions: [{action_id: a.b, risk_tier: none}]\n", "6: `risk_tier` must be one of low, medium, high, critical"),
    Bad("actions: [{action_id: a.b, parameters_schema: string}]\n", "6: `parameters_schema` must be a mapping."),
    Bad("checkpoint_config: {session_begin: {}}\n", "6: `session_begin` is not a key of `checkpoint_config`"),
    Bad("checkpoint_config: {session_start: {enabled: 1}}\n", "6: `enabled` must be true or false"),
    Bad("checkpoint_config: {time_interval: {enabled: false}}\n", "6: `time_interval` needs `seconds`"),
    Bad("checkpoint_config: {action_pre: {mappings: {delete_*: {confirm: true}}}}\n", "`confirm` is not a key of a mapping"),
    Bad("checkpoint_config: {action_pre: {mappings: {DELETE: {}}}}\n", "6: `mappings` must be the name of a tool"),
    Bad("checkpoint_config: {keyword_match: {mappings: [a]}}\n", "6: `mappings` must be a mapping."),
    Bad("checkpoint_config: {budget: {max_checkpoints_per_input: -1}}\n", "6: `max_checkpoints_per_input` must be"),
]  # fmt: skip
MEANING = [
    Bad("policies:\n  - {policy_id: p, type: deny, actions: [a.b]}\n  - {policy_id: p, type: deny, actions: [a.b]}\n",
        "8: the policy_id `p` is taken by line 7."),
    Bad("actions:\n  - action_id: a.b\n  - action_id: a.b\n", "8: the action_id `a.b` is taken by line 7."),
    Bad("capabilities:\n  - {capability_id: a, actions: [a.b]}\n  - {capability_id: a, actions: [a.b]}\n",
        "8: the capability_id `a` is taken by line 7."),
    Bad("context_blocks:\n  - {context_id: a, content: x}\n  - {context_id: a, content: x}\n",
        "8: the context_id `a` is taken by line 7."),
    Bad(TOLD + "    mode: advisory\n  - {checkpoint_id: g, trigger: {type: session_end}, mode: advisory}\n",
        "10: the checkpoint_id `g` is taken by line 7."),
    Bad(gate(START + "    questions:\n      - {question_id: q, question: A, response_type: boolean}\n"
             "      - {question_id: q, question: B, response_type: boolean}\n"),
        "12: the question_id `q` is taken by line 11."),
    Bad(TOLD + "    mode: advisory\n    inject_contexts:\n      - nowhere\n", "11: there is no context `nowhere` in"),
    Bad("context_blocks: [{context_id: intro-context, content: x}]\n" + TOLD + "    mode: advisory\n"
        "    inject_contexts: [intro-contxt]\n",
        "11: there is no context `intro-contxt`; did you mean `intro-context`?"),
    Bad(TOLD + "    mode: advisory\n    unlock_capabilities: [nowhere]\n", "10: there is no capability `nowhere`"),
    Bad(TOLD + "    mode: advisory\n    lock_capabilities: [nowhere]\n", "10: there is no capability `nowhere`"),
    Bad(gate("    trigger: {type: capability_access, capability_ids: [nowhere]}\n" + YES),
        "9: there is no capability `nowhere`"),
    Bad(TOLD + "    mode: advisory\n    guidance: {content: x, expires_after: later}\n",
        "10: `later` is neither `session-end`, nor a checkpoint of this atlas, nor a time such as 10m."),
    Bad(TOLD + "    mode: advisory\n    guidance: {content: x, expires_after: session-ends}\n",
        "nor a time such as 10m; did you mean `session-end`?"),
    Bad(TOLD + "    mode: advisory\n    guidance: {content: x, expires_after: g}\n", "10: it cannot end with its own"),
    Bad("checkpoints:\n  - {checkpoint_id: 10m, trigger: {type: session_start}, mode: advisory}\n",
        "7: `10m` reads as a time in `expires_after`: choose another id."),
    Bad("checkpoint_config: {session_start: {inject_contexts: [nowhere]}}\n", "6: there is no context `nowhere`"),
    Bad("checkpoint_config: {time_interval: {enabled: false, seconds: 9, inject_contexts: [nowhere]}}\n", "6: there is no"),
    Bad("checkpoint_config:\n  keyword_match:\n    mappings:\n      a|b: [nowhere]\n", "9: there is no context `nowhere`"),
    Bad("checkpoint_config:\n  keyword_match:\n    mappings:\n      a||b: []\n", "9: `a||b` has an empty word beside a bar."),
    Bad("checkpoint_config: {keyword_match: {match_mode: regex, mappings: {'(': []}}}\n", "6: `(` is not a regular"),
    Bad("checkpoint_config:\n  action_pre:\n    mappings:\n      delete_*: {inject_contexts: [nowhere]}\n",
        "9: there is no context `nowhere`"),
    Bad(gate(START), "8: a blocking checkpoint without `questions` stops nothing: add questions, write `audience: human`"),
    Bad(gate("    trigger: {type: session_end}\n" + YES), "8: nobody is there to answer when a session ends"),
    Bad(TOLD + "    mode: advisory\n" + YES, "10: nobody waits for an answer at a checkpoint that is advisory"),
    Bad(TOLD + "    mode: observational\n" + YES, "10: nobody waits for an answer at a checkpoint that is observational"),
    Bad(TOLD + "    mode: observational\n    guidance: {content: x}\n", "10: observational only records, so `guidance`"),
    Bad(TOLD + "    mode: observational\n    allow_actions: [a.b]\n", "10: observational only records, so `allow_actions`"),
    Bad(TOLD + "    mode: advisory\n    audience: human\n", "10: a person is asked only where it stops: advisory does not."),
    Bad(gate(START + "    audience: human\n    questions:\n      - {question_id: q, question: Why, response_type: text}\n"),
        "12: a person approves or denies: ask them a boolean or an acknowledgment."),
    Bad(gate(START + "    audience: human\n    questions:\n"
             "      - {question_id: q, question: Why, response_type: boolean, validation: {custom_validator: v}}\n"),
        "12: what a person answers is not checked by code."),
    Bad(gate(START + "    audience: human\n    max_attempts: 2\n"), "11: a person decides once"),
    Bad(gate(START + "    audience: human\n    questions:\n"
             "      - {question_id: q, question: Why, response_type: boolean, on_invalid: block}\n"),
        "12: a person approves or denies: nothing else follows from it, so `on_invalid` does nothing."),
    Bad(gate(START + "    audience: human\n    questions:\n"
             "      - {question_id: q, question: Why, response_type: boolean, required: false}\n"),
        "12: whoever approves confirms all of it, so a question to a person cannot be optional."),
    Bad("capabilities: [{capability_id: a, actions: [a.b]}]\n" + TOLD + "    mode: advisory\n"
        "    unlock_capabilities: [a]\n    lock_capabilities: [a]\n", "12: `a` is in `unlock_capabilities` as well"),
    Bad(TOLD + "    mode: advisory\n    allow_actions: [a.b]\n    deny_actions: [a.b]\n", "11: `a.b` is in `allow_actions`"),
    Bad(TOLD + "    mode: advisory\n    guidance: {format: json, content: '{'}\n", "10: `content` of the format json must"),
    Bad(TOLD + "    mode: advisory\n    guidance: {format: text, content: {a: 1}}\n", "10: `content` of the format text"),
    Bad(gate("    trigger: {type: keyword, match_mode: regex, patterns: ['a', '(?<=x)y']}\n" + YES),
        "9: `(?<=x)y` is not a regular expression that can be used"),
    Bad(gate("    trigger: {type: keyword, match_mode: regex, patterns: ['(a)\\1']}\n" + YES), "Look-around and back-"),
    Bad(gate("    trigger: {type: keyword, match_mode: regex, patterns: ['((a{100}){100}){100}']}\n" + YES),
        "is not a regular expression that can be used"),
    Bad(gate("    trigger: {type: keyword, patterns: [\"\\u200b\"]}\n" + YES), "9: a keyword must have a letter"),
    Bad("context_blocks: [{context_id: a, content: x, inject_mode: on_match, match_mode: regex, keywords: ['*']}]\n",
        "6: `*` is not a regular expression"),
    Bad(asks("question: Why, response_type: text, validation: {pattern: '['}"), "11: `[` is not a regular expression"),
    Bad(asks("question: Why, response_type: text, validation: {min_length: 5, max_length: 4}"), "11: `min_length` is more"),
    Bad(asks("question: Why, response_type: number, validation: {minimum: 5, maximum: 4}"), "11: `minimum` is more than"),
    Bad(asks("question: Why, response_type: text, validation: {must_contain: [The Reason], must_not_contain: [reason]}"),
        "11: `The Reason` holds a word that `must_not_contain` forbids."),
    Bad(asks("question: Which, response_type: text, validation: {equals_argument: order_id}"),
        "11: an answer at session_start counts for later calls too, whose arguments are others: ask at action_pre or risk_threshold."),
    *(
        Bad(gate("    trigger: {type: action_pre, patterns: [a.b]}\n    questions:\n      - {question_id: q, question: Which,"
                 f" response_type: text, validation: {{equals_argument: order_id}}, {more}}}\n"), f"11: {said}")
        for more, said in [
            ("required: false", "an answer that must equal an argument cannot be optional"),
            ("on_invalid: warn_and_continue", "`on_invalid: warn_and_continue` lets a call go on whose argument is another"),
            ("on_invalid: log_and_continue", "`on_invalid: log_and_continue` lets a call go on whose argument is another"),
        ]
    ),
    Bad(asks("question: Why, response_type: choice, options: [a, a]"), "11: an option stands there twice."),
    Bad(asks("question: Why, response_type: json, schema: {type: objekt}"), "11: its schema is not valid"),
    Bad(asks("question: Why, response_type: json, schema: {$ref: 'https://a.example/s'}"), "refers to another document"),
    Bad(asks("question: Why, response_type: json, schema: {properties: {a: {$ref: '#'}}}"), "its schema refers to itself"),
    Bad("actions: [{action_id: a.b, parameters_schema: {type: array}}]\n", "6: the arguments of an action are always an"),
    Bad("actions: [{action_id: a.b, parameters_schema: {type: object, required: 1}}]\n", "6: its schema is not valid"),
]  # fmt: skip
HEADS = [
    Bad(HEAD.replace('"1.0"', '"2.0"'), "1: `atlas_version` must be one of 1.0, not `2.0`; did you mean `1.0`?"),
    Bad(HEAD.replace("com.acme.support", "Com.Acme"), "2: `atlas_id` must be lower case with dots"),
    Bad(HEAD.replace("2.1.0", "2.1"), "3: `version` must be a text, and this is `2.1`: put it into quotes."),
    Bad(HEAD.replace("2.1.0", "a b"), "3: `version` must be a version such as 2.1.0"),
    Bad(HEAD.replace("name: Support\n", ""), "1: an atlas needs `name`, and this one has none."),
    Bad(HEAD.replace("{id: acme, name: ACME}", "acme"), "5: `steward` must be a steward: a mapping with id, name"),
    Bad(HEAD.replace("name: ACME", "nam: ACME"), "5: `nam` is not a key of a steward; did you mean `name`?"),
    *(
        Bad(HEAD.replace("name: ACME", f"name: ACME, {part}"), f"5: {said}", tells)
        for part, said, tells in [
            ("delivery: {mode: remote}", "`mode` cannot be `remote` here: atlases are kept by this plane", True),
            ("access: {type: secret}", "`type` must be one of public, authenticated", True),
            ("access: {api_keys: [a]}", "`api_keys` are for access of the type authenticated", False),
            ("access: {rate_limit: {requests_per_minute: 0}}", "`requests_per_minute` must be a whole number", True),
            ("access: {rate_limit: {}}", "`rate_limit` needs `requests_per_minute`", True),
            ("notifications: {triggers: [everything]}", "`triggers` must be one of policy_override", True),
            ("notifications: {channels: {slack: x}}", "`slack` is not a key of `channels`", True),
            ("notifications: {channels: {webhook: 'ftp://a'}}", "`webhook` must be an address that begins", True),
            ("notifications: {channels: {webhook: 'https://u:p@a.example/'}}", "`webhook` must not hold a user", False),
        ]
    ),
]  # fmt: skip


def refusal(text: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        read(text, name="my.yaml")
    assert refused.value.code == "invalid_atlas"
    assert "nothing was changed" in refused.value.hint
    return refused.value.message


def accepts(text: str) -> bool:
    return _validator().is_valid(yaml.load(text, Loader=_Texts))


@lru_cache(maxsize=1)
def _validator() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(schema())


class _Texts(yaml.SafeLoader):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """YAML as the reader of atlases sees it: only true and false are booleans."""


_Texts.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":bool", ":timestamp"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _first in "tf":
    _Texts.yaml_implicit_resolvers.setdefault(_first, []).append(
        ("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"))
    )


@pytest.mark.proves("D.310", "D.312")
@pytest.mark.parametrize("bad", KEYS, ids=lambda bad: bad.part[:80])
def test_a_wrong_key_or_value_is_named_with_its_line_and_the_schema_refuses_it_too(bad: Bad) -> None:
    text = below(bad.part)
    said = refusal(text)
    assert bad.said in said
    assert said.startswith("my.yaml:")
    assert not accepts(text)


@pytest.mark.proves("D.311", "D.312")
@pytest.mark.parametrize("bad", MEANING, ids=lambda bad: bad.part[:80])
def test_what_could_not_work_is_named_with_its_line(bad: Bad) -> None:
    text = below(bad.part)
    assert bad.said in refusal(text)
    assert accepts(text), "the keys are right: only the reader knows"


@pytest.mark.proves("D.310", "D.312")
@pytest.mark.parametrize("bad", HEADS, ids=lambda bad: bad.said[:60])
def test_a_wrong_head_is_named_with_its_line(bad: Bad) -> None:
    said = refusal(bad.part)
    assert said.startswith("my.yaml:")
    assert bad.said in said
    assert accepts(bad.part) is not bad.schema_tells


@pytest.mark.proves("D.310")
def test_every_line_at_fault_is_named_at_once_and_in_order() -> None:
    said = refusal(below("zzz: 1\nactions: [{action_id: A}]\ncheckpoints: 3\n")).splitlines()
    assert [each.partition(": ")[0] for each in said] == ["my.yaml:6", "my.yaml:7", "my.yaml:8"]
    many = refusal(below("".join(f"k{n}: 1\n" for n in range(30)))).splitlines()
    assert len(many) == 11
    assert many[-1] == "and 20 more"


@pytest.mark.proves("D.310")
@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "word\n", "{}", "[]"])
def test_a_file_that_is_no_mapping_is_told_what_an_atlas_is(text: str) -> None:
    assert refusal(text).startswith("my.yaml:1: an atlas is a mapping with atlas_version, atlas_id, version")


@pytest.mark.proves("D.312")
def test_the_published_schema_is_what_the_shapes_say() -> None:
    assert schema() == made_schema(), "run python scripts/atlas_schema.py"
    jsonschema_rs.meta.validate(schema())


@pytest.mark.proves("D.312")
def test_schema_and_reader_accept_the_same_files() -> None:
    texts = [SPEC.read_text(), below(CONFIG), HEAD]
    texts += [path.read_text() for path in EXAMPLES.glob("*.yaml") if ".scenarios." not in path.name]
    for text in texts:
        assert read(text).atlas
        assert accepts(text)
    whole = json.loads(read(below(CONFIG)).manifest)
    assert jsonschema_rs.validator_for(schema()).is_valid(whole), "the manifest is an atlas file too"


def _keys(shape: Shape) -> set[str]:
    match shape:
        case Record():
            fields = shape.fields.values()
            return {*shape.fields, *(key for each in fields for key in _keys(each.shape))}
        case Tagged():
            fields_of: list[Any] = [shape.common, *shape.kinds.values()]
            inner = [each for fields in fields_of for each in fields.items()]
            return {shape.tag, *(key for key, _ in inner), *(k for _, each in inner for k in _keys(each.shape))}
        case ListOf() | MapOf():
            return _keys(shape.of)
    return set()


@pytest.mark.proves("D.313")
def test_every_key_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "atlases.md").read_text()
    keys = _keys(ATLAS)
    assert len(keys) > 70
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
