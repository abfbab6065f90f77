"""Conditions of policies: CEL, checked when they are written and bounded in what they may cost.

Evaluation runs in native code that nothing can interrupt, so what could take long is refused beforehand: loops inside
loops, lists and texts that grow, regular expressions that are built from arguments or that expand.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cortex_plane.kernel.errors import InvalidInput, extra

VARIABLES = ("args", "tool", "risk", "read_only", "agent", "session_kind", "action_type")
FUNCTIONS = frozenset(
    {"size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string"}
    | {"timestamp", "duration"}
)
LOOPS = frozenset({"all", "exists", "exists_one"})
GROWING = frozenset({"map", "filter"})

MAX_LENGTH = 2000
MAX_TOKENS = 400
MAX_LOOPS = 4
MAX_ADDITIONS = 8
MAX_PATTERNS = 4
MAX_PATTERN = 200
MAX_REPEATS, MAX_CLASS_REPEATS = 1000, 32
MAX_LOOP_VALUES, MAX_LOOP_TEXT = 256, 64 * 1024
"""What the arguments of a call may hold where a condition loops over them."""

_TOKEN = re.compile(
    r"""
    (?P<raw>[bB]?[rR](?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*'))
  | (?P<string>[bB]?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
  | (?P<comment>//[^\n]*)
  | (?P<space>\s+)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<number>\d[\w.]*)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_REPEAT = re.compile(r"\{(\d*),?(\d*)\}")
_CLASS = re.compile(r"\\[wWdDsSpPbB]|\.|\[\^|\[\[:|\(\?")
_PARSE_NOISE = re.compile(r"^Failed to parse expression '.*?': ", re.DOTALL)
_SAMPLE = {
    "tool": "tool", "risk": "low", "read_only": False, "agent": "agent",
    "session_kind": "programmatic", "action_type": "tool_call",
}  # fmt: skip


@functools.cache
def _cel() -> Any:
    """Imported when a condition is met: it takes long, and most programs meet none."""
    with extra("server"):
        import cel

    return cel


class ConditionFailed(Exception):
    """It could not be told whether a condition holds. The message says why."""


class Surroundings:
    """What conditions look at in one call: converted once, and only where a condition is asked."""

    __slots__ = ("_arguments", "_context", "_fits", "_values")

    def __init__(self, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self._arguments, self._values = arguments, values
        self._context: Any = None
        self._fits: bool | None = None

    def only(self, names: Sequence[str]) -> Any:
        """What a condition names: to convert all of it takes many times as long as to evaluate one. Arguments are converted once."""
        if "args" not in names:
            return {name: self._values[name] for name in names}
        if self._context is None:
            self._context = _cel().Context({**self._values, "args": self._arguments})
        return self._context

    @property
    def fits_a_loop(self) -> bool:
        if self._fits is None:
            self._fits = _fits(self._arguments)
        return self._fits


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    program: Any
    loops: bool
    variables: tuple[str, ...]
    """Those that it names."""

    @classmethod
    def of(cls, text: str) -> Condition:
        """Compiles; raises ``InvalidInput`` with the reason where a condition cannot be used. Those that were asked for last
        are kept, so that whoever compiles one in a thread finds it ready on the event loop."""
        return _compiled(text)

    def holds(self, context: Surroundings) -> bool:
        if self.loops and not context.fits_a_loop:
            raise ConditionFailed(
                f"the arguments hold more than {MAX_LOOP_VALUES} values or {MAX_LOOP_TEXT // 1024} KiB,"
                " too much for a condition with a loop"
            )
        try:
            answer = self.program.execute(context.only(self.variables))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the native code is not an Exception
            message = (str(error).splitlines() or [type(error).__name__])[0][:200]
            if isinstance(error, KeyError):
                message = f"there is no {error.args[0] if error.args else 'such key'}"
            raise ConditionFailed(message) from None
        if answer is not True and answer is not False:
            raise ConditionFailed(f"it gave {type(answer).__name__} and not true or false")
        return bool(answer)


@functools.lru_cache(maxsize=512)
def _compiled(text: str) -> Condition:
    """None of them is longer than ``MAX_LENGTH`` or has more parts than are allowed, so 512 take at most some 20 MB."""
    loops = _check_shape(_tokens(text))
    try:
        program = _cel().compile(text)
    except ValueError as error:
        reason = _PARSE_NOISE.sub("", str(error)).splitlines()[0][:300]
        raise _refused(f"does not parse: {reason}") from None
    references = program.references()
    if unknown := sorted(set(references["variables"]) - set(VARIABLES) - set(loops)):
        raise _refused(f"names {', '.join(unknown)}; it may name {', '.join(VARIABLES)}.")
    if strange := sorted(name for name in references["functions"] if name[0].isalpha() and name not in FUNCTIONS):
        raise _refused(f"calls {', '.join(strange)}; it may call {', '.join(sorted(FUNCTIONS))}, has.")
    try:
        answer = program.execute({**_SAMPLE, "args": {}})
    except Exception:  # most conditions need arguments
        answer = True
    if not isinstance(answer, bool):
        raise _refused(f"gives {type(answer).__name__} and not true or false.")
    return Condition(text, program, bool(loops), tuple(name for name in VARIABLES if name in references["variables"]))


def _refused(reason: str) -> InvalidInput:
    return InvalidInput(
        f"The condition {reason}",
        code="invalid_condition",
        hint=f"Conditions are CEL over {', '.join(VARIABLES)}; see docs/guides/policies.md.",
    )


class _Token(NamedTuple):
    kind: str
    text: str


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise _refused(f"has {len(text)} characters; the limit is {MAX_LENGTH}.")
    if not text.strip():
        raise _refused("is empty. Leave it out where the row should always match.")
    tokens = [
        _Token(str(match.lastgroup), match.group())
        for match in _TOKEN.finditer(text)
        if match.lastgroup not in ("comment", "space")
    ]
    if len(tokens) > MAX_TOKENS:
        raise _refused(f"has {len(tokens)} parts; the limit is {MAX_TOKENS}.")
    if any(token.kind == "mark" and token.text in "`\"'" for token in tokens):
        raise _refused("has a quote that does not close, or a backtick.")
    return tokens


def _check_shape(tokens: list[_Token]) -> list[str]:
    """Refuses what could take long; returns the names that loops give to their items."""
    additions = sum(token.text == "+" for token in tokens)
    if additions > MAX_ADDITIONS:
        raise _refused(f"adds {additions} times; the limit is {MAX_ADDITIONS}.")
    names: list[str] = []
    patterns, depth, inside = 0, 0, -1
    for index, token in enumerate(tokens):
        if token.kind == "mark":
            depth += (token.text in "([{") - (token.text in ")]}")
            if depth < inside:
                inside = -1
            continue
        following = [after.text for after in tokens[index + 1 : index + 3]]
        if token.kind != "word" or following[:1] != ["("]:
            continue
        if token.text in GROWING:
            raise _refused(f"uses {token.text}; use all, exists or exists_one.")
        if token.text in LOOPS:
            if inside >= 0:
                raise _refused("has a loop inside a loop.")
            inside = depth + 1
            names += following[1:]
            if following[-1] in VARIABLES:
                raise _refused(f"gives {following[-1]} another meaning in a loop; choose another name.")
        if token.text == "matches":
            if inside >= 0:
                raise _refused("uses matches inside a loop.")
            patterns += 1
            _check_pattern(tokens, index)
    if len(names) > MAX_LOOPS:
        raise _refused(f"has {len(names)} loops; the limit is {MAX_LOOPS}.")
    if patterns > MAX_PATTERNS:
        raise _refused(f"uses matches {patterns} times; the limit is {MAX_PATTERNS}.")
    return names


def _check_pattern(tokens: list[_Token], index: int) -> None:
    """A pattern is written out, short, and does not multiply itself: it is built anew for each call."""
    after = tokens[index + 2 : index + 4]
    if len(after) < 2 or after[0].kind not in ("string", "raw") or after[1].text != ")":
        raise _refused('uses matches with something else than a text in quotes: args.path.matches("^/etc/").')
    pattern = after[0].text
    if len(pattern) > MAX_PATTERN:
        raise _refused(f"has a pattern of {len(pattern)} characters; the limit is {MAX_PATTERN}.")
    product = 1
    for low, high in _REPEAT.findall(pattern):
        product *= max(1, int(low or 0), int(high or 0))
    if product > (MAX_CLASS_REPEATS if _CLASS.search(pattern) else MAX_REPEATS):
        raise _refused("has a pattern that repeats too often.")
    try:
        _cel().compile(f'"".matches({pattern})').execute({})
    except (ValueError, RuntimeError) as error:
        raise _refused(f"has a pattern that is not one: {' '.join(str(error).split())[:200]}") from None


def _fits(arguments: Mapping[str, Any]) -> bool:
    text = 0
    for values, value in enumerate(_inside(arguments)):
        if isinstance(value, str):
            text += len(value)
        if values >= MAX_LOOP_VALUES or text > MAX_LOOP_TEXT:
            return False
    return True


def _inside(value: Any) -> Iterator[Any]:
    """Every value and every key, without recursion."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, Mapping):
            waiting.extend(value.keys())
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
