"""Atlas files: what each key means, and that every way to write a gate ends in the same gates."""

from __future__ import annotations

import pytest

from cortex_plane.gates.files.atlases import compiled, read
from cortex_plane.gates.model.atlases import (
    PRIORITIES,
    AccessType,
    Action,
    AnswerValidation,
    AtlasPolicy,
    AtlasPolicyType,
    Audience,
    Capability,
    ContextBlock,
    Gate,
    GateBudget,
    GateQuestion,
    Guidance,
    GuidanceFormat,
    InjectMode,
    MatchMode,
    Mode,
    OnInvalid,
    ResponseType,
    Steward,
    Trigger,
    TriggerType,
)
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import Template
from tests.gates.files import EXAMPLES, SPEC, atlas, loaded

ATLAS = "com.acme.support"


def gate(part: str, id: str = "gate") -> Gate:
    (found,) = [each for each in atlas(part).gates if each.gate_id == id]
    return found


@pytest.mark.proves("D.300", "S5.21")
def test_the_complete_example_of_the_specification_loads_as_it_is_written() -> None:
    found = read(SPEC.read_text(), name="spec-5.yaml")
    example = found.atlas
    assert (example.atlas_id, example.version, example.name) == (ATLAS, "2.1.0", "ACME Support Atlas")
    assert example.description == "Customer support capabilities with governance"
    assert example.steward == Steward(
        id="acme-corp", name="ACME Corporation", contact="atlas@acme.com", access=AccessType.AUTHENTICATED,
        api_keys=("sk-acme-*",), requests_per_minute=100, webhook="https://acme.com/cra-events",
        notify_on=("policy_override", "high_risk_action"),
    )  # fmt: skip
    assert example.capabilities == (
        Capability(
            capability_id="basic-support", name="Basic Support", locked=True,
            actions=("ticket.get", "ticket.list", "ticket.comment"),
        ),
        Capability(
            capability_id="admin-support", name="Admin Support", locked=True,
            actions=("ticket.delete", "ticket.reassign", "user.ban"),
        ),
    )  # fmt: skip
    onboarding, delete, risk, admin, intro, summary = example.gates
    assert onboarding == Gate(
        gate_id="onboarding", atlas_id=ATLAS, name="Session Onboarding", mode=Mode.BLOCKING, priority=1000,
        trigger=Trigger(type=TriggerType.SESSION_START),
        questions=(
            GateQuestion(
                question_id="agree-terms", question="Do you agree to ACME's terms of service?",
                response_type=ResponseType.BOOLEAN,
            ),
        ),
        guidance=Guidance(
            content="Welcome to ACME Support!\nPlease handle all customer data responsibly.\n",
            format=GuidanceFormat.MARKDOWN,
        ),
        contexts=("intro-context", "policy-summary"), unlock_capabilities=("basic-support",),
    )  # fmt: skip
    assert delete.trigger == Trigger(type=TriggerType.ACTION_PRE, patterns=("*.delete",))
    assert (delete.priority, delete.force_sync_trace) == (900, True)
    assert risk.trigger == Trigger(type=TriggerType.RISK_THRESHOLD, min_tier=Risk.HIGH)
    assert risk.questions[0].validation == AnswerValidation(min_length=20)
    assert risk.guidance is not None
    assert risk.guidance.format is GuidanceFormat.SYSTEM_INSTRUCTION
    assert admin.trigger == Trigger(type=TriggerType.CAPABILITY_ACCESS, capability_ids=("admin-support",))
    assert admin.priority == PRIORITIES[TriggerType.CAPABILITY_ACCESS]
    assert [each.gate_id for each in (intro, summary)] == ["context:intro-context", "context:policy-summary"]
    assert example.policies == (
        AtlasPolicy(
            policy_id="require-admin-approval", type=AtlasPolicyType.REQUIRES_APPROVAL,
            actions=("user.ban", "ticket.delete"), reason="Admin actions require approval",
        ),
    )  # fmt: skip
    assert [each.action_id for each in example.actions] == ["ticket.get"]
    assert [each.partition(": ")[2] for each in found.warnings] == [
        f"the action `{each}` is not declared in `actions`: only its tool says how risky it is."
        for each in ("ticket.comment", "ticket.list", "ticket.delete", "ticket.reassign", "user.ban")
    ]
    assert found.warnings[0].startswith("spec-5.yaml:28: ")


@pytest.mark.proves("D.300")
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: str(path.name))
def test_every_atlas_that_ships_loads_without_a_warning(path: object) -> None:
    from pathlib import Path

    file = Path(str(path))
    if ".scenarios." in file.name:
        pytest.skip("scenarios are no atlas")
    assert read(file.read_text(), name=file.name).warnings == []


@pytest.mark.proves("D.300")
def test_the_example_that_ships_is_the_specifications_with_its_actions_declared() -> None:
    ours = read((EXAMPLES / "acme-support.yaml").read_text()).atlas
    theirs = read(SPEC.read_text()).atlas
    assert (ours.gates, ours.capabilities, ours.contexts, ours.policies, ours.steward) == (
        theirs.gates, theirs.capabilities, theirs.contexts, theirs.policies, theirs.steward,
    )  # fmt: skip
    named = {action for each in ours.capabilities for action in each.actions}
    assert {each.action_id for each in ours.actions} == named


@pytest.mark.proves("D.301", "S5.22")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("{type: session_start}", Trigger(type=TriggerType.SESSION_START)),
        ("{type: interactive}", Trigger(type=TriggerType.INTERACTIVE)),
        ("{type: error_occurred}", Trigger(type=TriggerType.ERROR_OCCURRED)),
        (
            "{type: action_pre, patterns: ['*.delete', 'ticket.*']}",
            Trigger(type=TriggerType.ACTION_PRE, patterns=("*.delete", "ticket.*")),
        ),
        (
            "{type: action_post, patterns: [payment.process]}",
            Trigger(type=TriggerType.ACTION_POST, patterns=("payment.process",)),
        ),
        (
            "{type: keyword, patterns: [refund, cancel], case_sensitive: false, match_mode: any}",
            Trigger(type=TriggerType.KEYWORD, patterns=("refund", "cancel")),
        ),
        (
            "{type: keyword_match, patterns: ['^re'], case_sensitive: true, match_mode: regex}",
            Trigger(
                type=TriggerType.KEYWORD, patterns=("^re",), case_sensitive=True, match_mode=MatchMode.REGEX
            ),
        ),
        (
            "{type: keyword, patterns: [a, b], match_mode: all}",
            Trigger(type=TriggerType.KEYWORD, patterns=("a", "b"), match_mode=MatchMode.ALL),
        ),
        (
            "{type: keyword, patterns: [money back], match_mode: phrase}",
            Trigger(type=TriggerType.KEYWORD, patterns=("money back",), match_mode=MatchMode.PHRASE),
        ),
        *(
            (
                f"{{type: risk_threshold, min_tier: {tier}}}",
                Trigger(type=TriggerType.RISK_THRESHOLD, min_tier=tier),
            )
            for tier in Risk
        ),
        (
            "{type: capability_access, capability_ids: [tools]}",
            Trigger(type=TriggerType.CAPABILITY_ACCESS, capability_ids=("tools",)),
        ),
        (
            "{type: capability_gate, capability_ids: [tools]}",
            Trigger(type=TriggerType.CAPABILITY_ACCESS, capability_ids=("tools",)),
        ),
        ("{type: time_interval, seconds: 300}", Trigger(type=TriggerType.TIME_INTERVAL, seconds=300)),
        ("{type: time_interval, seconds: 1.5}", Trigger(type=TriggerType.TIME_INTERVAL, seconds=1.5)),
        ("{type: count_interval, actions: 10}", Trigger(type=TriggerType.COUNT_INTERVAL, actions=10)),
        ("{type: explicit_request}", Trigger(type=TriggerType.EXPLICIT_REQUEST)),
        (
            "{type: explicit_request, patterns: ['help-*']}",
            Trigger(type=TriggerType.EXPLICIT_REQUEST, patterns=("help-*",)),
        ),
        (
            "{type: custom, trigger_id: sentiment-check, params: {threshold: -0.5, deep: {on: no, n: null}}}",
            Trigger(
                type=TriggerType.CUSTOM, trigger_id="sentiment-check",
                params={"threshold": -0.5, "deep": {"on": "no", "n": None}},
            ),
        ),
    ],
)  # fmt: skip
def test_each_trigger_with_its_keys(written: str, meant: Trigger) -> None:
    found = gate(f"""\
        capabilities: [{{capability_id: tools, actions: ["a.*"]}}]
        checkpoints:
          - checkpoint_id: gate
            trigger: {written}
            mode: advisory
    """)
    assert found.trigger == meant
    assert found.priority == PRIORITIES[meant.type]
    assert found.name == "gate", "its id, where it has no name"


@pytest.mark.proves("D.301")
def test_a_session_end_is_recorded_or_told() -> None:
    found = gate("""\
        checkpoints:
          - {checkpoint_id: gate, trigger: {type: session_end}, mode: observational}
    """)
    assert (found.trigger.type, found.mode) == (TriggerType.SESSION_END, Mode.OBSERVATIONAL)
    assert found.priority == 0


@pytest.mark.proves("D.302")
def test_a_checkpoint_says_everything_that_a_gate_can_do() -> None:
    found = gate("""\
        capabilities:
          - {capability_id: one, actions: ["a.*"]}
          - {capability_id: two, actions: ["b.*"]}
        context_blocks: [{context_id: known, content: x}]
        checkpoints:
          - checkpoint_id: gate
            name: The Gate
            trigger: {type: session_start}
            mode: blocking
            audience: agent
            max_attempts: 5
            priority: -3
            force_sync_trace: true
            questions: [{question_id: q, question: Well?, response_type: boolean}]
            guidance:
              content: Mind the gap.
              format: text
              priority: 7
              append: false
              expires_after: 10m
              labels: [security, compliance]
            inject_contexts: [known]
            unlock_capabilities: [one]
            lock_capabilities: [two]
            allow_actions: ["admin.*"]
            deny_actions: ["public.*"]
    """)
    assert found == Gate(
        gate_id="gate", atlas_id=ATLAS, name="The Gate", trigger=Trigger(type=TriggerType.SESSION_START),
        mode=Mode.BLOCKING, priority=-3, audience=Audience.AGENT, max_attempts=5, force_sync_trace=True,
        questions=(GateQuestion(question_id="q", question="Well?", response_type=ResponseType.BOOLEAN),),
        guidance=Guidance(
            content="Mind the gap.", priority=7, append=False, expires_after="10m",
            labels=("security", "compliance"),
        ),
        contexts=("known",), unlock_capabilities=("one",), lock_capabilities=("two",),
        allow_actions=("admin.*",), deny_actions=("public.*",),
    )  # fmt: skip


@pytest.mark.proves("D.302")
def test_a_gate_for_people_needs_no_questions() -> None:
    found = gate("""\
        checkpoints:
          - {checkpoint_id: gate, trigger: {type: action_pre, patterns: [a.b]}, mode: blocking, audience: human}
    """)
    assert found.asks_people
    assert found.questions == ()


@pytest.mark.proves("D.302")
@pytest.mark.parametrize("written", ["{limits: [1, 2.5]}", "'{\"limits\": [1, 2.5]}'"])
def test_guidance_in_json_is_written_out_or_as_a_text(written: str) -> None:
    found = gate(f"""\
        checkpoints:
          - checkpoint_id: gate
            trigger: {{type: session_start}}
            mode: advisory
            guidance: {{format: json, content: {written}}}
    """)
    assert found.guidance is not None
    assert found.guidance.content.replace(" ", "") == '{"limits":[1,2.5]}'


@pytest.mark.proves("D.303")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            """{response_type: text, required: true, hint: Explain, on_invalid: retry, validation: {min_length: 20,
               max_length: 500, must_contain: [reason], must_not_contain: [hack, bypass],
               pattern: '^[A-Za-z].*\\.$', custom_validator: tone}}""",
            GateQuestion(
                question_id="q", question="Well?", response_type=ResponseType.TEXT, hint="Explain",
                validation=AnswerValidation(
                    min_length=20, max_length=500, must_contain=("reason",), must_not_contain=("hack", "bypass"),
                    pattern="^[A-Za-z].*\\.$", custom_validator="tone",
                ),
            ),
        ),
        (
            "{response_type: boolean, required: false, on_invalid: block}",
            GateQuestion(
                question_id="q", question="Well?", response_type=ResponseType.BOOLEAN, required=False,
                on_invalid=OnInvalid.BLOCK,
            ),
        ),
        (
            "{response_type: acknowledgment, on_invalid: warn_and_continue}",
            GateQuestion(
                question_id="q", question="Well?", response_type=ResponseType.ACKNOWLEDGMENT,
                on_invalid=OnInvalid.WARN_AND_CONTINUE,
            ),
        ),
        (
            "{response_type: choice, options: [admin, user], on_invalid: log_and_continue}",
            GateQuestion(
                question_id="q", question="Well?", response_type=ResponseType.CHOICE, options=("admin", "user"),
                on_invalid=OnInvalid.LOG_AND_CONTINUE,
            ),
        ),
        (
            "{response_type: number, validation: {minimum: 1, maximum: 9.5}}",
            GateQuestion(
                question_id="q", question="Well?", response_type=ResponseType.NUMBER,
                validation=AnswerValidation(minimum=1, maximum=9.5),
            ),
        ),
        (
            "{response_type: json, schema: {type: object, required: [a]}}",
            GateQuestion(
                question_id="q", question="Well?", response_type=ResponseType.JSON,
                schema={"type": "object", "required": ["a"]},
            ),
        ),
    ],
    ids=lambda each: each.response_type if isinstance(each, GateQuestion) else "",
)  # fmt: skip
def test_each_type_of_question_with_its_keys(written: str, meant: GateQuestion) -> None:
    found = gate(f"""\
        checkpoints:
          - checkpoint_id: gate
            trigger: {{type: session_start}}
            mode: blocking
            questions:
              - {{question_id: q, question: "Well?", {written.strip()[1:]}
    """)
    assert found.questions == (meant,)


@pytest.mark.proves("D.304")
def test_contexts_fire_as_their_inject_mode_says() -> None:
    found = atlas("""\
        context_blocks:
          - {context_id: plain, content: P}
          - {context_id: asked, name: Asked, content: A, inject_mode: on_demand, priority: 5}
          - {context_id: always, content: B, inject_mode: always}
          - {context_id: matched, content: C, inject_mode: on_match, keywords: [refund, back], match_mode: all,
             case_sensitive: true}
          - {context_id: risky, content: D, inject_mode: risk_based, min_tier: critical}
    """)
    assert found.contexts[1] == ContextBlock(
        context_id="asked", name="Asked", content="A", inject_mode=InjectMode.ON_DEMAND, priority=5
    )
    assert {each.gate_id: each.trigger for each in found.gates} == {
        "context:plain": Trigger(type=TriggerType.EXPLICIT_REQUEST, patterns=("plain",)),
        "context:asked": Trigger(type=TriggerType.EXPLICIT_REQUEST, patterns=("asked",)),
        "context:always": Trigger(type=TriggerType.SESSION_START),
        "context:matched": Trigger(
            type=TriggerType.KEYWORD, patterns=("refund", "back"), match_mode=MatchMode.ALL, case_sensitive=True
        ),
        "context:risky": Trigger(type=TriggerType.RISK_THRESHOLD, min_tier=Risk.CRITICAL),
    }  # fmt: skip
    assert {each.mode for each in found.gates} == {Mode.ADVISORY}
    assert [each.contexts for each in found.gates] == [(each.context_id,) for each in found.contexts]


CONFIG = """\
context_blocks:
  - {context_id: facts, content: x}
  - {context_id: warning, content: y}
checkpoint_config:
  session_start: {enabled: true, inject_contexts: [facts]}
  keyword_match:
    enabled: true
    mappings:
      geometry|index: [facts]
      delete | remove: [warning, facts]
    case_sensitive: true
    match_mode: all
  action_pre:
    enabled: true
    mappings:
      delete_*: {inject_contexts: [warning], require_policy_check: true, require_confirmation: true}
      "ticket.get": {inject_contexts: [facts]}
  risk_threshold: {enabled: true, min_tier: high, inject_contexts: [warning], require_sync_trace: true}
  time_interval: {enabled: true, seconds: 300, inject_contexts: [facts]}
  count_interval: {actions: 50, inject_contexts: [facts]}
  budget: {max_checkpoints_per_input: 5, max_context_injection_size: 10000, max_checkpoint_time_ms: 500}
"""


@pytest.mark.proves("D.305", "S5.28")
def test_the_short_form_makes_the_same_gates() -> None:
    found = atlas(CONFIG)
    gates = {each.gate_id: each for each in found.gates if each.gate_id.startswith("config:")}
    assert {id: each.trigger for id, each in gates.items()} == {
        "config:session_start": Trigger(type=TriggerType.SESSION_START),
        "config:keyword_match:geometry|index": Trigger(
            type=TriggerType.KEYWORD, patterns=("geometry", "index"), case_sensitive=True, match_mode=MatchMode.ALL
        ),
        "config:keyword_match:delete | remove": Trigger(
            type=TriggerType.KEYWORD, patterns=("delete", "remove"), case_sensitive=True, match_mode=MatchMode.ALL
        ),
        "config:action_pre:delete_*": Trigger(type=TriggerType.ACTION_PRE, patterns=("delete_*", "delete.*")),
        "config:action_pre:ticket.get": Trigger(type=TriggerType.ACTION_PRE, patterns=("ticket.get",)),
        "config:risk_threshold": Trigger(type=TriggerType.RISK_THRESHOLD, min_tier=Risk.HIGH),
        "config:time_interval": Trigger(type=TriggerType.TIME_INTERVAL, seconds=300),
        "config:count_interval": Trigger(type=TriggerType.COUNT_INTERVAL, actions=50),
    }  # fmt: skip
    asks = gates.pop("config:action_pre:delete_*")
    assert (asks.mode, asks.require_policy_check, asks.contexts) == (Mode.BLOCKING, True, ("warning",))
    (question,) = asks.questions
    assert (question.response_type, question.required) == (ResponseType.ACKNOWLEDGMENT, True)
    assert {each.mode for each in gates.values()} == {Mode.ADVISORY}
    assert not any(each.questions or each.require_policy_check for each in gates.values())
    assert [id for id, each in gates.items() if each.force_sync_trace] == ["config:risk_threshold"]
    assert gates["config:keyword_match:delete | remove"].contexts == ("warning", "facts")
    assert all(each.priority == PRIORITIES[each.trigger.type] for each in gates.values())
    assert found.budget == GateBudget(
        max_checkpoints_per_input=5, max_context_injection_size=10000, max_checkpoint_time_ms=500
    )


@pytest.mark.proves("D.305")
def test_a_section_that_is_not_enabled_makes_nothing() -> None:
    off = CONFIG.replace("enabled: true", "enabled: false").replace("{actions:", "{enabled: false, actions:")
    assert [each.gate_id for each in atlas(off).gates] == ["context:facts", "context:warning"]


@pytest.mark.proves("D.305")
def test_a_regular_expression_keeps_its_bar() -> None:
    found = gate(
        """\
        context_blocks: [{context_id: facts, content: x}]
        checkpoint_config:
          keyword_match: {match_mode: regex, mappings: {"re(fund|turn)s?": [facts]}}
        """,
        "config:keyword_match:re(fund|turn)s?",
    )
    assert found.trigger.patterns == ("re(fund|turn)s?",)


@pytest.mark.proves("D.306")
def test_policies_and_actions_with_all_their_keys() -> None:
    found = atlas("""\
        policies:
          - {policy_id: a, type: deny, actions: [a.b], reason: No}
          - {policy_id: b, type: requires_approval, actions: [a.b], template: critical_path}
          - {policy_id: c, type: rate_limit, actions: [a.*], max_calls: 3, window_seconds: 60}
          - {policy_id: d, type: budget, actions: [a.*], max_calls: 10}
          - {policy_id: e, type: allow, actions: ["*"]}
        actions:
          - action_id: a.b
            name: A B
            description: Does it
            risk_tier: critical
            parameters_schema: {type: object, properties: {n: {type: integer, minimum: 1}}}
          - {action_id: a.c}
    """)
    assert found.policies == (
        AtlasPolicy(policy_id="a", type=AtlasPolicyType.DENY, actions=("a.b",), reason="No"),
        AtlasPolicy(
            policy_id="b", type=AtlasPolicyType.REQUIRES_APPROVAL, actions=("a.b",), template=Template.CRITICAL_PATH
        ),
        AtlasPolicy(
            policy_id="c", type=AtlasPolicyType.RATE_LIMIT, actions=("a.*",), max_calls=3, window_seconds=60
        ),
        AtlasPolicy(policy_id="d", type=AtlasPolicyType.BUDGET, actions=("a.*",), max_calls=10),
        AtlasPolicy(policy_id="e", type=AtlasPolicyType.ALLOW, actions=("*",)),
    )  # fmt: skip
    assert found.actions == (
        Action(
            action_id="a.b", name="A B", description="Does it", risk_tier=Risk.CRITICAL,
            parameters_schema={"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}},
        ),
        Action(action_id="a.c", name="a.c"),
    )  # fmt: skip


@pytest.mark.proves("D.307")
def test_a_capability_begins_locked_where_a_gate_opens_it_or_stands_before_it() -> None:
    found = atlas("""\
        capabilities:
          - {capability_id: open, actions: [a.a]}
          - {capability_id: opened, actions: [a.b]}
          - {capability_id: guarded, actions: [a.c]}
          - {capability_id: watched, actions: [a.d]}
          - {capability_id: shut-later, actions: [a.e]}
        checkpoints:
          - {checkpoint_id: a, trigger: {type: session_start}, mode: advisory, unlock_capabilities: [opened],
             lock_capabilities: [shut-later]}
          - {checkpoint_id: b, trigger: {type: capability_access, capability_ids: [guarded]}, mode: advisory}
          - {checkpoint_id: c, trigger: {type: capability_access, capability_ids: [watched]}, mode: observational}
    """)
    assert {each.capability_id: each.locked for each in found.capabilities} == {
        "open": False, "opened": True, "guarded": True, "watched": False, "shut-later": False,
    }  # fmt: skip


@pytest.mark.proves("D.308")
@pytest.mark.parametrize(
    ("part", "warnings"),
    [
        (
            "capabilities: [{capability_id: a, actions: [x.y, x.y, 'x.*']}]",
            ["6: the action `x.y` is not declared in `actions`: only its tool says how risky it is."],
        ),
        (
            "actions:\n  - action_id: x.y\n",
            [
                "7: nothing can ever allow the action `x.y`: put it into a capability, or allow it by a policy."
            ],
        ),
        ("actions: [{action_id: x.y}]\npolicies: [{policy_id: p, type: deny, actions: [x.y]}]", []),
        ("actions: [{action_id: x.y}]\npolicies: [{policy_id: p, type: requires_approval, actions: ['x.*']}]", []),
        (
            ("actions: [{action_id: x.y}]\ncheckpoints:\n"
            "  - {checkpoint_id: g, trigger: {type: session_start}, mode: advisory, allow_actions: ['*']}"),
            [],
        ),
        (
            ("capabilities:\n  - {capability_id: a, actions: ['x.*']}\ncheckpoints:\n"
            "  - {checkpoint_id: g, trigger: {type: session_start}, mode: advisory, lock_capabilities: [a]}"),
            ["7: `g` locks the capability `a`, and nothing unlocks it again.",
             "7: no sequence of answers lets the actions `x.*` run: nothing that can be reached unlocks `a`."],
        ),
        (
            ("context_blocks: [{context_id: c, content: x}]\ncheckpoints:\n"
            "  - checkpoint_id: g\n    trigger: {type: session_end}\n    mode: advisory\n    inject_contexts: [c]"),
            ["11: `inject_contexts` comes too late: the session ends."],
        ),
        (
            ("checkpoints:\n  - checkpoint_id: g\n    trigger: {type: session_start}\n    mode: blocking\n"
            "    questions:\n      - {question_id: q, response_type: text, question: What is the API key?}"),
            ["11: do not ask for credentials: answers are kept on the trail."],
        ),
        *(
            (
                ("checkpoints:\n  - checkpoint_id: g\n    trigger: {type: session_start}\n"
                f"    mode: {mode}\n    max_attempts: 5"),
                [f"10: nobody answers a checkpoint that is {mode}: `max_attempts` does nothing."],
            )
            for mode in ("advisory", "observational")
        ),
        (
            "checkpoint_config:\n  action_pre:\n    mappings:\n      a.*: {}\n      b.*: {require_confirmation: false}",
            [f"{line}: it asks for nothing: the mapping does nothing but record." for line in (9, 10)],
        ),
        (
            "checkpoint_config:\n  keyword_match:\n    mappings:\n      word: []",
            ["9: it names no contexts: the mapping does nothing but record."],
        ),
        *(
            (f"checkpoint_config:\n  {section}: {{{given}}}", [f"7: `{section}` has no `inject_contexts`: it does nothing but record."])
            for section, given in (
                ("session_start", ""), ("session_start", "inject_contexts: []"), ("risk_threshold", "min_tier: high"),
                ("time_interval", "seconds: 9"), ("count_interval", "actions: 9"),
            )
        ),
        *(
            (f"checkpoint_config:\n  {section}", [])
            for section in (
                "session_start: {enabled: false}", "risk_threshold: {min_tier: high, require_sync_trace: true}",
                "action_pre: {mappings: {'a.*': {require_policy_check: true}}}",
                "action_pre: {enabled: false, mappings: {'a.*': {}}}", "keyword_match: {enabled: false, mappings: {a: []}}",
            )
        ),
    ],
)  # fmt: skip
def test_what_is_probably_not_meant_is_a_warning_with_its_line(part: str, warnings: list[str]) -> None:
    assert loaded(part).warnings == [f"atlas.yaml:{each}" for each in warnings]


@pytest.mark.proves("D.308")
@pytest.mark.parametrize(
    ("notifications", "said"),
    [
        ("{triggers: [policy_override]}", "nobody is told"),
        ("{channels: {webhook: 'https://a.example/x'}}", "the webhook is never called"),
    ],
)
def test_notices_that_reach_nobody_are_a_warning(notifications: str, said: str) -> None:
    text = SPEC.read_text().partition("  notifications:")[0] + f"  notifications: {notifications}\n"
    (warning,) = read(text).warnings
    assert said in warning


@pytest.mark.proves("D.308")
def test_many_warnings_are_counted() -> None:
    actions = ", ".join(f"a{n}.b" for n in range(150))
    warnings = loaded(f"capabilities: [{{capability_id: a, actions: [{actions}]}}]").warnings
    assert len(warnings) == 101
    assert warnings[-1] == "and 50 more warnings"


@pytest.mark.proves("D.309")
def test_an_atlas_is_always_made_from_its_manifest() -> None:
    for text in (SPEC.read_text(), (EXAMPLES / "acme-support.yaml").read_text()):
        found = read(text)
        assert compiled(found.manifest) == found.atlas
    found = loaded(CONFIG)
    assert compiled(found.manifest) == found.atlas
