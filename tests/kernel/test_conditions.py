"""Conditions: what may be written, and that nothing that may be written takes long."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from cortex_plane.kernel.conditions import Condition, ConditionFailed, Surroundings
from cortex_plane.kernel.errors import InvalidInput

CONTEXT = {
    "tool": "t", "risk": "low", "read_only": False, "agent": "a", "session_kind": "programmatic",
    "action_type": "tool_call",
}  # fmt: skip


def holds(condition: str, **arguments: Any) -> bool:
    return Condition.of(condition).holds(Surroundings(arguments, CONTEXT))


@pytest.mark.proves("D.53")
@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("", "is empty"),
        ("args.a ==", "does not parse"),
        ("(" * 500 + "true" + ")" * 500, "parts; the limit is"),
        ("x == 1", "names x"),
        ("args.a == env", "names env"),
        ("now() > timestamp('2020-01-01T00:00:00Z')", "calls now"),
        ("args.a.lowerAscii() == 'b'", "calls lowerAscii"),
        ("1 + 1", "gives int"),
        ("'yes'", "gives str"),
        ("a" * 2001, "the limit is 2000"),
        ("args.l.map(x, x) == []", "uses map"),
        ("args.l.filter(x, true) == []", "uses filter"),
        ("args.l.\n map // comment\n (x, x) == []", "uses map"),
        ('r"\\" != "" && args.l.map(x, x) == [] || r"\\" == ""', "uses map"),
        ("args.l.all(x, args.l.all(y, x == y))", "loop inside a loop"),
        ("args.l.all(tool, tool == 1)", "gives tool another meaning"),
        ("args.l.all(x, true)" + " && args.l.all(x, true)" * 4, "5 loops"),
        ("args.a" + " + args.a" * 9 + " == 1", "adds 9 times"),
        ("args.a.matches(args.b)", "something else than a text"),
        ('matches(args.a, "x")', "something else than a text"),
        ('args.a.matches("(")', "not one"),
        ('args.a.matches(r"(\\w{30}){30}")', "repeats too often"),
        ('args.a.matches("' + "x" * 250 + '")', "pattern of"),
        ('args.l.all(x, x.matches("a"))', "matches inside a loop"),
        (" && ".join(['args.a.matches("a")'] * 5), "matches 5 times"),
        ("args.`a` == 1", "backtick"),
        ('args.a == "', "does not close"),
    ],
)
def test_what_cannot_work_or_could_take_long_is_refused_with_the_reason(condition: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Condition.of(condition)
    assert refused.value.code == "invalid_condition"
    assert why in refused.value.message


def test_conditions_hold_or_do_not() -> None:
    assert holds('args.a == "x" // why', a="x")
    assert holds('args.path.matches("^/etc/")', path="/etc/passwd")
    assert not holds('args.path.matches("^/etc/")', path="/home")
    assert holds("args.n > 9223372036854775807u", n=2**64 - 1)
    assert holds("args.f == 1", f=1.0)
    assert not holds("has(args.a)")
    assert holds("has(args.a) && args.a == null", a=None)
    assert holds("args.missing == 1 || true")


def test_what_it_cannot_tell_is_an_error_and_never_a_value() -> None:
    for condition in ("args.a", "args.a == 1 && args.b", "args.l[3] == 1", "args.a > 'x'"):
        with pytest.raises(ConditionFailed):
            holds(condition, a=1, l=[])


@pytest.mark.proves("D.53")
@pytest.mark.parametrize(
    "condition",
    [
        "args.many.all(x, x in args.many)",
        "args.many.all(x, args.many + args.many + args.many != args.many)",
        "args.many == args.many" + " && args.many == args.many" * 30,
        "args.many + args.many + args.many + args.many + args.many + args.many != []",
        "args.long + args.long + args.long + args.long + args.long + args.long != ''",
        'args.long.matches("(x+x+)+y") || args.long.matches("(a|aa)+b") || args.long.matches("x*x*x*x*x*y")',
        "!" * 398 + "true",
        "args" + ".a" * 190 + " == 1",
    ],
)
@pytest.mark.parametrize("size", [256 - 3, 100_000])
def test_nothing_that_may_be_written_takes_long(condition: str, size: int) -> None:
    arguments = {"many": list(range(size)), "long": "x" * 250_000 if size > 256 else "x" * 60_000}
    compiled = Condition.of(condition)
    started = time.process_time()
    with contextlib.suppress(ConditionFailed):
        compiled.holds(Surroundings(arguments, CONTEXT))
    assert time.process_time() - started < 5
