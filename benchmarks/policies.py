"""A verdict with ten and with a hundred thousand rows: exact names, globs of every shape, conditions."""

from __future__ import annotations

import statistics
import time

from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import CallFacts, PolicyRow, PolicySet, PolicyVerdict, Template
from cortex_plane.policies.rules.engine import CompiledPolicies

FEW, MANY = 10, 100_000
AIM = 1.3
_PLATFORM = PolicyRow(
    name="critical-needs-approval",
    target="*",
    effect=PolicyVerdict.REQUIRES_APPROVAL,
    condition='risk == "critical"',
    template=Template.CRITICAL_PATH,
)
_SHAPES = ("service_{n}.restart", "service_{n}.*", "*.verb_{n}", "*_area{n}_*", "tool.{n}.*.delete")
_ASKED = ("deploy.web", "deploy.api", "read.logs", "pay.refund", "mail.send")


def _policies(rows: int) -> CompiledPolicies:
    """The rows that match stand last, so that nothing is won by an early end."""
    filling = [
        PolicyRow(name=f"r{n}", target=_SHAPES[n % len(_SHAPES)].format(n=n), effect=PolicyVerdict.DENY)
        for n in range(rows - 5)
    ]
    matching = [
        PolicyRow(
            name="production",
            target="deploy*",
            effect=PolicyVerdict.REQUIRES_APPROVAL,
            condition='args.environment == "production"',
            template=Template.DEV_REVIEW,
        ),
        PolicyRow(name="deploys", target="deploy*", effect=PolicyVerdict.ALLOW),
        PolicyRow(name="reads", target="read.*", effect=PolicyVerdict.ALLOW),
        PolicyRow(name="refunds", target="*.refund", effect=PolicyVerdict.REQUIRES_APPROVAL),
        PolicyRow(name="mail", target="mail.send", effect=PolicyVerdict.REQUIRES_APPROVAL),
    ]
    return CompiledPolicies(PolicySet(version="1.1", platform=(_PLATFORM,), org=(*filling, *matching)))


def _calls() -> list[CallFacts]:
    return [
        CallFacts(
            target=target,
            arguments={"environment": environment, "amount": 12, "note": "x" * 200},
            read_only=target.startswith("read"),
            risk=Risk.MEDIUM,
            agent="deployer",
        )
        for target in _ASKED
        for environment in ("production", "staging")
    ]


def _seconds(policies: CompiledPolicies, calls: list[CallFacts], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        for facts in calls:
            policies.decide(facts)
    return (time.perf_counter() - started) / (count * len(calls))


def run(*, rounds: int = 9, count: int = 200) -> bool:
    calls = _calls()
    began = time.perf_counter()
    rivals = {FEW: _policies(FEW), MANY: _policies(MANY)}
    built = time.perf_counter() - began
    taken: dict[int, list[float]] = {rows: [] for rows in rivals}
    for policies in rivals.values():
        _seconds(policies, calls, count // 4)
    for _ in range(rounds):
        for rows, policies in rivals.items():
            taken[rows].append(_seconds(policies, calls, count))
    few, many = (statistics.median(taken[rows]) for rows in (FEW, MANY))
    ratio = many / few
    missed = ratio > AIM
    print(f"\n{'policy verdict':36}{'µs':>10}{'ratio':>10}{'aim':>8}")
    print(f"{f'  {FEW} rows':36}{few * 1e6:>10.1f}")
    told = f"{ratio:>9.2f}×{f'≤ {AIM}':>8}{'  MISSED' if missed else ''}"
    print(f"{f'  {MANY:,} rows':36}{many * 1e6:>10.1f}{told}")
    print(f"{f'  compiling {MANY:,} rows':36}{built * 1e3:>8.0f} ms")
    return not missed


if __name__ == "__main__":
    run()
