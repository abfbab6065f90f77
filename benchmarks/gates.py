"""What gates say of a call, with ten and with a hundred thousand of them; and beside Cedar, on the same rules.

The same few gates match, whatever else there is. Actions are asked about for the first time and again: what an atlas says of an
action is looked up once. Cedar, through its Python binding, has its policies and entities read once as well; it is asked one
question at a time, as an agent asks, and many at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from cortex_plane.gates.model.atlases import (
    PRIORITIES,
    Action,
    Atlas,
    AtlasPolicy,
    AtlasPolicyType,
    Capability,
    ContextBlock,
    Gate,
    GateQuestion,
    Guidance,
    MatchMode,
    Mode,
    ResponseType,
    Steward,
    Trigger,
    TriggerType,
)
from cortex_plane.gates.model.gates import NOTHING_YET, GatedCall, GateInput, GateState
from cortex_plane.gates.rules.answers import answer, meant
from cortex_plane.gates.rules.evaluation import at_boundary, judge, ran
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import PolicyVerdict

SIZES = (10, 1_000, 100_000)
AIM = 2.0
ID = "bench"
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
RULES = 100
"""Of the set that Cedar has too."""
_SHAPES = ("service_{n}.restart", "service_{n}.*", "*.verb_{n}", "*_area{n}_*", "tool.{n}.*.delete")
_INPUT = "Could you look at my last order? I may want a refund, the parcel was open when it came. " * 5

Work = Callable[[], object]


def _gate(id: str, trigger: Trigger, mode: Mode = Mode.ADVISORY, **more: Any) -> Gate:
    return Gate(
        gate_id=id, atlas_id=ID, name=id, trigger=trigger, mode=mode, priority=PRIORITIES[trigger.type], **more
    )  # fmt: skip


def _filling(number: int) -> Gate:
    """Half of them stand before actions, half listen for words; none of them matches."""
    if number % 2:
        trigger = Trigger(type=TriggerType.ACTION_PRE, patterns=(_SHAPES[number % 5].format(n=number),))
    else:
        mode = (MatchMode.ANY, MatchMode.PHRASE)[number % 4 // 2]
        trigger = Trigger(type=TriggerType.KEYWORD, patterns=(f"topic {number}", f"word{number}"), match_mode=mode)
    return _gate(f"g{number}", trigger)


def _atlas(gates: int) -> Atlas:
    """Five of them match: at the start, for a word, for an action, for its risk, before its capability."""
    sure = (GateQuestion(question_id="sure", question="Sure?", response_type=ResponseType.ACKNOWLEDGMENT),)
    matching = (
        _gate("start", Trigger(type=TriggerType.SESSION_START), contexts=("intro",)),
        _gate("word", Trigger(type=TriggerType.KEYWORD, patterns=("refund",)), guidance=Guidance(content="Be kind.")),
        _gate("before", Trigger(type=TriggerType.ACTION_PRE, patterns=("ticket.*",))),
        _gate("risky", Trigger(type=TriggerType.RISK_THRESHOLD, min_tier=Risk.HIGH), Mode.OBSERVATIONAL),
        _gate(
            "admin", Trigger(type=TriggerType.CAPABILITY_ACCESS, capability_ids=("admin",)), Mode.BLOCKING, questions=sure
        ),
    )  # fmt: skip
    return Atlas(
        atlas_id=ID, version="1", name=ID, digest="", steward=Steward(id=ID, name=ID),
        gates=(*(_filling(n) for n in range(gates - len(matching))), *matching),
        capabilities=(Capability(capability_id="admin", name="Admin", actions=("ticket.*",)),),
        contexts=(ContextBlock(context_id="intro", name="Intro", content="You work for Acme."),),
        policies=(AtlasPolicy(policy_id="rate", type=AtlasPolicyType.RATE_LIMIT, actions=("ticket.*",), max_calls=1_000_000, window_seconds=60.0),),
        actions=(Action(action_id="ticket.delete", name="Delete", risk_tier=Risk.HIGH),),
    )  # fmt: skip


def _call(name: str) -> GatedCall:
    return GatedCall(action=name, arguments={"ticket_id": "7"}, input_hash="ab" * 32, risk=Risk.MEDIUM)


def _session(atlases: CompiledAtlases) -> GateState:
    """One that has begun, and has passed the gate of its capability."""
    state = at_boundary(atlases, NOTHING_YET, GateInput(now=NOW)).state
    state = judge(atlases, state, _call("ticket.delete"), NOW).state
    passed = answer(atlases, state, meant(atlases, state, "admin", None), {"sure": "understood"}, {}, NOW)
    return judge(atlases, passed.state, _call("ticket.delete"), NOW).state


def _resolution(atlases: CompiledAtlases) -> Work:
    """What becomes of one input and one call: a boundary, a verdict, and what running uses up."""
    state, call, moment = (_session(atlases), _call("ticket.delete"), GateInput(now=NOW, inputs=(_INPUT,), heard=1))

    def work() -> object:
        before = at_boundary(atlases, state, moment).state
        ruling = judge(atlases, before, call, NOW)
        assert ruling.verdict is PolicyVerdict.ALLOW, ruling
        return ran(atlases, ruling.state, call, NOW)

    return work


def _verdict(atlases: CompiledAtlases) -> Work:
    state, call = _session(atlases), _call("ticket.delete")
    return lambda: judge(atlases, state, call, NOW)


def _first_verdict(atlases: CompiledAtlases) -> Work:
    """Of an action that nobody asked about before."""
    state = _session(atlases)
    calls = [_call(f"ticket.x{number}") for number in range(20_000)]
    return lambda: judge(atlases, state, calls.pop(), NOW)


def _measured(rivals: dict[str, Work], rounds: int, count: int) -> dict[str, float]:
    """Median seconds of each, in turn."""
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds + 1):  # the first one warms up
        for name, work in rivals.items():
            started = time.perf_counter()
            for _ in range(count):
                work()
            if number:
                taken[name].append((time.perf_counter() - started) / count)
    return {name: statistics.median(times) for name, times in taken.items()}


def _growth(made: dict[int, CompiledAtlases], title: str, work: Callable[[CompiledAtlases], Work], count: int) -> bool:
    medians = _measured({f"{size:,} gates": work(made[size]) for size in SIZES}, rounds=9, count=count)
    few, *_, many = medians.values()
    missed = many / few > AIM
    print(f"\n{title:44}{'µs':>10}{'ratio':>10}{'aim':>8}")
    for name, seconds in medians.items():
        last = name == f"{SIZES[-1]:,} gates"
        told = f"{seconds / few:>9.2f}×{f'≤ {AIM:g}' if last else '':>8}{'  MISSED' if last and missed else ''}"
        print(f"{'  ' + name:44}{seconds * 1e6:>10.1f}{told}")
    return not missed


# Beside Cedar ----------------------------------------------------------------------------------------------------


def _rules() -> tuple[CompiledAtlases, str, list[str]]:
    """The same set twice: half of the actions allowed, half denied, and whatever is not named is denied."""
    names = [f"svc{number}.act" for number in range(RULES)]
    policies = tuple(
        AtlasPolicy(policy_id=f"p{n}", type=AtlasPolicyType.DENY if n % 2 else AtlasPolicyType.ALLOW, actions=(name,))
        for n, name in enumerate(names)
    )  # fmt: skip
    ours = Atlas(atlas_id=ID, version="1", name=ID, digest="", steward=Steward(id=ID, name=ID), policies=policies)
    cedar = "\n".join(
        f'{"forbid" if n % 2 else "permit"}(principal == User::"agent", action == Action::"{name}", resource);'
        for n, name in enumerate(names)
    )
    return CompiledAtlases([ours]), cedar, [*names, *(f"other{number}.act" for number in range(RULES))]


def _beside_cedar(count: int) -> bool:
    try:
        import cedarpy
    except ImportError:
        print("\ncedarpy is not here: `pip install -c constraints-bench.txt cedarpy` to measure beside it")
        return True
    atlases, policies, names = _rules()
    calls = [_call(name) for name in names]
    requests = [
        {"principal": 'User::"agent"', "action": f'Action::"{name}"', "resource": 'Thing::"one"', "context": {}}
        for name in names
    ]  # fmt: skip
    parsed, nobody = cedarpy.PolicySet.from_str(policies), cedarpy.Entities.from_json_str("[]")
    _agree(atlases, calls, cedarpy.is_authorized_batch(requests, parsed, nobody))
    numbers = iter(range(10**9))

    def ours() -> object:
        return judge(atlases, NOTHING_YET, calls[next(numbers) % len(calls)], NOW)

    def one() -> object:
        return cedarpy.is_authorized(requests[next(numbers) % len(calls)], parsed, nobody)

    def many() -> object:
        return cedarpy.is_authorized_batch(requests, parsed, nobody)

    medians = _measured({"gates": ours, "Cedar, one by one": one}, rounds=7, count=count)
    medians["Cedar, 200 at once"] = _measured({"": many}, rounds=5, count=2)[""] / len(requests)
    print(f"\n{f'allow or deny, {RULES} rules':44}{'µs each':>10}{'ratio':>10}{'aim':>8}")
    missed = medians["gates"] > medians["Cedar, one by one"]
    for name, seconds in medians.items():
        aim = "≤ 1" if name == "gates" else ""
        ratio = seconds / medians["Cedar, one by one"]
        print(f"{'  ' + name:44}{seconds * 1e6:>10.1f}{ratio:>9.2f}×{aim:>8}{'  MISSED' if aim and missed else ''}")
    return not missed


def _agree(atlases: CompiledAtlases, calls: Sequence[GatedCall], answers: Sequence[Any]) -> None:
    """Both say the same of every action, or there is nothing to compare."""
    for call, theirs in zip(calls, answers, strict=True):
        ours = judge(atlases, NOTHING_YET, call, NOW).verdict is PolicyVerdict.ALLOW
        if ours is not theirs.allowed:
            raise AssertionError(f"{call.action}: {ours} here, {theirs.allowed} there")


def run(*, count: int = 200) -> bool:
    began = time.perf_counter()
    made = {size: CompiledAtlases([_atlas(size)]) for size in SIZES}
    for atlases in made.values():
        _ = atlases.keywords
    built = time.perf_counter() - began
    met = [
        _growth(made, "gates: an input and a call", _resolution, count),
        _growth(made, "gates: a verdict", _verdict, count * 4),
        _growth(made, "gates: the first verdict of an action", _first_verdict, count),
    ]
    print(f"{f'  compiling {sum(SIZES):,} gates':44}{built * 1e3:>8.0f} ms")
    met.append(_beside_cedar(count))
    return all(met)


if __name__ == "__main__":
    run()
