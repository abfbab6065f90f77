"""Whatever is said, answered, forged, called and approved, in whatever order: no gated call goes through without its gates.

The machine keeps its own, much simpler account of what was answered rightly and for which call, and holds every verdict against
it. It knows nothing of how gates are found, and nothing of the state that they keep.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cortex_plane.gates.model.atlases import AtlasPolicyType, GateBudget, Mode, TriggerType
from cortex_plane.gates.model.gates import GatedCall, Ruling, kept_state, state_of
from cortex_plane.gates.rules.answers import answer, meant
from cortex_plane.gates.rules.evaluation import judge
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.sessions.model.events import TraceType
from tests.crash.points import extents
from tests.fixtures.gates import ATLAS, Life, atlas, call, capability, gate, human, policy

TELL = Mode.ADVISORY
FIRST = atlas(
    gate("start", TriggerType.SESSION_START, max_attempts=50),
    gate("word", TriggerType.KEYWORD, on_patterns=("refund",), max_attempts=50),
    gate("del", TriggerType.ACTION_PRE, on_patterns=("*.delete",), max_attempts=50),
    gate("risk", TriggerType.RISK_THRESHOLD, on_min_tier=Risk.HIGH, max_attempts=50),
    gate("admin", TriggerType.CAPABILITY_ACCESS, on_capability_ids=("adm",), max_attempts=50),
    gate("lock", TriggerType.KEYWORD, mode=TELL, on_patterns=("lock",), lock_capabilities=("adm",)),
    gate("deny", TriggerType.KEYWORD, mode=TELL, on_patterns=("deny",), deny_actions=("x.*",)),
    gate("watch", TriggerType.ACTION_PRE, mode=Mode.OBSERVATIONAL, on_patterns=("*",)),
    policies=(policy(AtlasPolicyType.DENY, "never.*"), policy(AtlasPolicyType.ALLOW)),
    capabilities=(capability("adm", "adm.*"),),
    budget=GateBudget(max_checkpoints_per_input=0),
)  # fmt: skip
SECOND = atlas(
    human("boss", TriggerType.ACTION_PRE, of="b", on_patterns=("pay.*",)),
    human("money", TriggerType.KEYWORD, of="b", on_patterns=("money",)),
    gate("allow", TriggerType.KEYWORD, of="b", mode=TELL, on_patterns=("allow",), allow_actions=("x.*", "never.*", "*")),
    id="b",
    policies=(),
)  # fmt: skip
# The budget leaves out whatever does not block; the machine needs those of its gates that change something.
WITHOUT_BUDGET = replace(FIRST, budget=GateBudget())
NAMES = ("t.get", "t.delete", "adm.ban", "adm.delete", "x.go", "x.delete", "never.go", "pay.out", "pay.delete")
CALLS = st.builds(
    lambda name, risk, id: call(name, risk, id=id),
    st.sampled_from(NAMES), st.sampled_from([Risk.LOW, Risk.LOW, Risk.HIGH]), st.integers(0, 1),
)  # fmt: skip
GATES = st.sampled_from(["start", "word", "del", "risk", "admin", "boss", "watch", "none", f"{ATLAS}/del", ""])
ANSWERS = st.sampled_from(
    [
        {"sure": "understood"}, {"sure": "Understood!"}, {"sure": "not understood"}, {"sure": False}, {"sure": True}, {},
        {"other": "understood"}, {"sure": "understood", "unlock": "adm"}, {"sure": None}, {"sure": {"passed": True}},
    ]
)  # fmt: skip
RIGHT = ({"sure": "understood"}, {"sure": "Understood!"})


def _said(ruling: Ruling) -> tuple[Any, ...]:
    asks = [each.gate for each in ruling.asks]
    return ruling.verdict, ruling.rule, ruling.reason, ruling.risk, ruling.strict, asks, ruling.people


class Sessions(RuleBasedStateMachine):
    atlases = (WITHOUT_BUDGET, SECOND)

    def __init__(self) -> None:
        super().__init__()
        self.life = Life(*self.atlases)
        self.unanswered = {"start"}
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.admin = False
        self.denied = False
        self.money = False
        self.shown: dict[str, bool] = {}
        """By call that people were asked about: whether the question about money stood on the card."""
        self.judged: list[GatedCall] = []

    # What happens ----------------------------------------------------------------------------------------------

    @initialize(agreed=st.booleans())
    def begin(self, agreed: bool) -> None:
        if agreed:
            self._answer("start", RIGHT[0], None)

    @rule(words=st.sets(st.sampled_from(["refund", "lock", "deny", "allow", "money", "hello"]), max_size=2))
    def say(self, words: set[str]) -> None:
        self.life.step(" ".join(sorted(words)), passing=1)
        if self.life.state.ended is not None:
            return
        self.unanswered |= {"word"} & {"word" if "refund" in words else ""}
        self.admin = self.admin and "lock" not in words
        self.denied = self.denied or "deny" in words
        self.money = self.money or "money" in words

    @rule(gate_id=GATES, answers=ANSWERS, number=st.none() | st.integers(0, 3))
    def answer(self, gate_id: str, answers: dict[str, Any], number: int | None) -> None:
        waiting = self.life.state.open
        self._answer(gate_id, answers, waiting[number % len(waiting)].call if number is not None and waiting else None)

    def _answer(self, gate_id: str, answers: dict[str, Any], name: str | None) -> None:
        found = meant(self.life.atlases, self.life.state, gate_id, name)
        said = answer(self.life.atlases, self.life.state, found, answers, {}, self.life.now)
        self.life._take(said)
        if not said.valid:
            return
        assert answers in RIGHT
        assert found.gate is not None
        assert found.which is not None
        key = found.gate.gate_id
        if found.which.call:
            assert any(
                (each.action, each.input_hash) == (found.which.action, found.which.input_hash) for each in self.judged
            )
            self.tokens[key, found.which.action, found.which.input_hash] += 1
            self.admin = self.admin or key == "admin"
        else:
            assert key in self.unanswered
            self.unanswered.discard(key)

    @precondition(lambda self: self.life.state.open)
    @rule(number=st.integers(0, 3))
    def agree(self, number: int) -> None:
        """Left to chance, hardly any answer would be right."""
        which = self.life.state.open[number % len(self.life.state.open)]
        self._answer(which.gate, RIGHT[0], which.call)

    @rule(given=CALLS)
    def ask(self, given: GatedCall) -> None:
        ruling = self.life.judge(given)
        self.judged = [given, *(each for each in self.judged if each != given)]
        self._hold(given, ruling.verdict)
        if ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            self.shown[given.call_id] = self.money

    @precondition(lambda self: self.judged)
    @rule(number=st.integers(0, 2), approved=st.booleans())
    def run_one(self, number: int, approved: bool) -> None:
        """Something that was asked for before."""
        self.run(self.judged[number % len(self.judged)], approved)

    @rule(given=CALLS, approved=st.booleans())
    def run_any(self, given: GatedCall, approved: bool) -> None:
        self.run(given, approved)

    def run(self, given: GatedCall, approved: bool) -> None:
        """As whoever runs calls does: it looks again, and runs what is allowed."""
        approved = approved and given.call_id in self.shown
        sent = replace(given, approved=approved)
        ruling = judge(self.life.atlases, self.life.state, sent, self.life.now)
        self._hold(sent, ruling.verdict)
        if ruling.verdict is not PolicyVerdict.ALLOW:
            return
        self.life._take(ruling)
        self.life.run(sent)
        # One pass of each gate goes with it, also of one that asked while the same call counted as riskier.
        for key, left in self.tokens.items():
            if left and key[1:] == (given.action, given.input_hash):
                self.tokens[key] -= 1
        if approved:
            if self.money:
                self.shown = dict.fromkeys(self.shown, False)
            self.money = False

    @precondition(lambda self: self.life.state.asks)
    @rule()
    def ignore(self) -> None:
        self.life.ignore()

    # What must hold --------------------------------------------------------------------------------------------

    def _needed(self, given: GatedCall) -> list[str]:
        found = ["del"] if given.action.endswith(".delete") else []
        return [*found, "risk"] if given.risk is Risk.HIGH else found

    def _hold(self, given: GatedCall, verdict: PolicyVerdict) -> None:
        passed = (
            not self.unanswered
            and all(self.tokens[id, given.action, given.input_hash] > 0 for id in self._needed(given))
            and (self.admin or not given.action.startswith("adm."))
        )
        denied = given.action.startswith("never.") or (self.denied and given.action.startswith("x."))
        people = self.money or given.action.startswith("pay.")
        seen = given.approved and (self.shown.get(given.call_id, False) or not self.money)
        if verdict is not PolicyVerdict.DENY:
            assert passed, "a gate was not passed"
            assert not denied, "what is denied was let through"
        if verdict is PolicyVerdict.ALLOW:
            assert seen or not people, "nobody approved it"
        if passed and not denied and not self.life.state.shut:
            expected = PolicyVerdict.REQUIRES_APPROVAL if people and not seen else PolicyVerdict.ALLOW
            assert verdict is expected, "it passed its gates and is not let through"

    @invariant()
    def the_state_survives_its_row(self) -> None:
        assert state_of(kept_state(self.life.state)) == self.life.state

    @invariant()
    def looking_twice_says_the_same_and_changes_nothing(self) -> None:
        life = self.life
        before = kept_state(life.state)
        for name in NAMES[:2]:
            first, second = (judge(life.atlases, life.state, call(name), life.now) for _ in range(2))
            assert first == second
        assert kept_state(life.state) == before

    @invariant()
    def who_only_looks_sees_what_a_call_is_told(self) -> None:
        life = self.life
        for name in NAMES:
            told, seen = (
                judge(life.atlases, life.state, call(name), life.now, looking=looking) for looking in (False, True)
            )
            assert (seen.state, seen.traces) == (life.state, ())
            assert _said(seen) == _said(told)

    @invariant()
    def what_blocks_is_never_left_out(self) -> None:
        skipped = {each.payload["checkpoint_id"] for each in self.life.traces if each.type is TraceType.SKIPPED}
        assert skipped <= {"watch", "lock", "deny", "allow"}


class Frugal(Sessions):
    """The same under a budget for nothing: then no advice is given, and every gate that blocks still does."""

    atlases = (FIRST, SECOND)

    @rule(words=st.sets(st.sampled_from(["refund", "money", "hello"]), max_size=2))
    def say(self, words: set[str]) -> None:
        super().say(words)


@extents
@pytest.mark.proves("D.355", "S5.20")
def test_no_sequence_of_events_lets_a_gated_call_through_without_its_gates(whole: bool) -> None:
    run_state_machine_as_test(
        Sessions, settings=settings(max_examples=400 if whole else 25, stateful_step_count=40, deadline=None)
    )


@extents
@pytest.mark.proves("D.342", "D.355")
def test_nor_does_a_budget(whole: bool) -> None:
    run_state_machine_as_test(
        Frugal, settings=settings(max_examples=100 if whole else 10, stateful_step_count=30, deadline=None)
    )
