"""Strict YAML and JSON documents: values with their lines, bounded in size."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import InvalidInput, TooLarge, extra

with extra("server"):
    import yaml  # type: ignore[import-untyped, unused-ignore]

MAX_DEPTH = 20
MAX_FAULTS = 10
"""That are told."""
MANY = 50
ENOUGH = 10_000
"""Faults after which a file is not read on."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
_Y: Any = yaml


@dataclass(slots=True)
class Scalar:
    line: int
    text: str
    plain: bool
    """Without quotes."""


@dataclass(frozen=True, slots=True)
class Sequence:
    line: int
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mapping:
    line: int
    items: dict[str, Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


Node = Scalar | Sequence | Mapping


class Faults:
    """What is wrong with a file, line by line."""

    def __init__(self, code: str, hint: str, name: str | None = None) -> None:
        """``name``: of the file, to be told with each line."""
        self._code = code
        self._hint = hint
        self._name = name
        self._found: list[tuple[int, str]] = []

    def add(self, line: int, message: str) -> None:
        self._found.append((line, message))
        if len(self._found) >= ENOUGH:
            raise self._error()

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def many(self) -> bool:
        """So many that nobody wants advice with each."""
        return len(self._found) >= MANY

    def refuse(self, line: int, message: str) -> NoReturn:
        """Where the rest of the file cannot be read."""
        self.add(line, message)
        raise self._error()

    def raise_any(self) -> None:
        if self._found:
            raise self._error()

    def at(self, line: int) -> str:
        return f"line {line}" if self._name is None else f"{self._name}:{line}"

    def _error(self) -> InvalidInput:
        found = sorted(set(self._found))
        told = [f"{self.at(line)}: {message}" for line, message in found[:MAX_FAULTS]]
        if len(found) > MAX_FAULTS:
            told.append(f"and {len(found) - MAX_FAULTS} more")
        return InvalidInput("\n".join(told), code=self._code, hint=self._hint)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a file may be."""

    bytes: int
    depth: int = MAX_DEPTH
    nodes: int | None = None
    """Values in it: each takes room, however short it is."""


def check_size(text: str, bounds: Bounds) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > bounds.bytes:
        raise TooLarge(f"The file is {size} bytes; the limit is {bounds.bytes}.")
    check_text(text, "text")


def read_document(text: str, faults: Faults, bounds: int | Bounds) -> Node | None:
    """The one document of a file; None where it is empty."""
    limits = Bounds(bounds) if isinstance(bounds, int) else bounds
    check_size(text, limits)
    try:
        return _build(_Y.parse(text, Loader=_Loader), faults, limits)
    except _Y.YAMLError as error:
        said = str(getattr(error, "problem", None) or error).splitlines()[0]
        faults.refuse(_line_of(error, text), f"this is not YAML: {said}.")


def _line_of(error: Exception, text: str) -> int:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return int(mark.line) + 1
    position = getattr(error, "position", None)  # of a character that YAML does not allow
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else 1


@dataclass(slots=True)
class _Open:
    """A list or a mapping that is being read, and the key whose value comes next."""

    node: Sequence | Mapping
    key: str | None = None


class Building:
    """A tree that grows value by value, in the order of the file."""

    __slots__ = ("_bounds", "_faults", "_most", "_nodes", "_opened", "root")

    def __init__(self, faults: Faults, bounds: Bounds) -> None:
        self.root: Node | None = None
        self._faults, self._bounds = faults, bounds
        self._opened: list[_Open] = []
        self._nodes, self._most = 0, bounds.nodes or bounds.bytes

    def scalar(self, line: int, text: str, plain: bool) -> None:
        """The next key, value or entry."""
        if self._opened:
            parent = self._opened[-1]
            if parent.key is None and type(parent.node) is Mapping:
                parent.key = self._key(parent.node, line, text)
                return
        self._attach(Scalar(line, text, plain))

    def begin(self, node: Sequence | Mapping) -> None:
        """A list or a mapping: what follows belongs to it, until it ends."""
        self._attach(node)
        if len(self._opened) >= self._bounds.depth:
            self._faults.refuse(node.line, f"this is nested deeper than {self._bounds.depth} levels.")
        self._opened.append(_Open(node))

    def end(self) -> None:
        self._opened.pop()

    def _attach(self, node: Node) -> None:
        self._nodes += 1
        if self._nodes > self._most:
            raise TooLarge(f"The file holds more than {self._most} values.")
        if not self._opened:
            self.root = node
            return
        parent = self._opened[-1]
        into = parent.node
        if type(into) is Sequence:
            into.items.append(node)
        elif type(into) is Mapping:
            if parent.key is None:
                self._faults.refuse(node.line, "a key must be a word.")
            into.items[parent.key] = node
            parent.key = None

    def _key(self, into: Mapping, line: int, text: str) -> str:
        first = into.lines.setdefault(text, line)
        if first != line or text in into.items:
            self._faults.add(line, f"`{text[:100]}` stands here twice (first in line {first}).")
        return text


def _build(events: Iterator[Any], faults: Faults, bounds: Bounds) -> Node | None:
    tree = Building(faults, bounds)
    scalar, starts, ends = _Y.ScalarEvent, (_Y.SequenceStartEvent, _Y.MappingStartEvent), _ENDS
    documents = 0
    for event in events:
        kind = type(event)
        if kind in ends:
            tree.end()
            continue
        line = event.start_mark.line + 1
        if kind is scalar or kind in starts:
            if event.anchor is not None or (event.tag is not None and event.tag != "!"):
                _refuse_marks(event, line, faults)
            if kind is scalar:
                tree.scalar(line, _text(event, line, faults), event.implicit[0] and event.style in (None, ""))
            else:
                tree.begin(Sequence(line) if kind is starts[0] else Mapping(line))
        elif kind is _Y.AliasEvent:
            _refuse_marks(event, line, faults)
        elif kind is _Y.DocumentStartEvent:
            documents += 1
            if documents > 1:
                faults.refuse(line, "a file holds one document, and here a second one begins.")
    return tree.root


_ENDS = (_Y.SequenceEndEvent, _Y.MappingEndEvent)


def _refuse_marks(event: Any, line: int, faults: Faults) -> NoReturn:
    if event.anchor is not None:
        faults.refuse(line, "anchors and aliases (& and *) are not read: write it out.")
    faults.refuse(line, f"the tag {event.tag} is not read: leave it out.")


def _text(event: Any, line: int, faults: Faults) -> str:
    text: str = event.value
    if event.style == '"' and ("\x00" in text or not text.isascii()):  # what was escaped
        try:
            check_text(text, "a text")
        except InvalidInput as error:
            faults.refuse(line, error.message)
    return text


_WHOLE = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0x[0-9a-fA-F]+|0o[0-7]+")
_DURATION = re.compile(r"(?:[0-9]{1,7}[smhd])+")
_PART = re.compile(r"([0-9]+)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS = {"true", "false", "null", "~", ""}
MAX_LIST = 100

Choice = TypeVar("Choice", bound=StrEnum)


class Values:
    def __init__(self, faults: Faults, longest_seconds: int, instead: MappingOf[str, str]) -> None:
        """``instead``: what to write where somebody uses a word that is not ours."""
        self._faults = faults
        self._longest = longest_seconds
        self._instead = instead

    @property
    def faults(self) -> Faults:
        return self._faults

    def fault(self, line: int, message: str) -> None:
        self._faults.add(line, message)

    def known_keys(self, node: Mapping, known: tuple[str, ...], what: str) -> None:
        for key, line in node.lines.items():
            if key in known:
                continue
            if key in self._instead:
                self._faults.add(line, f"`{key}` is not a key of {what}; use {self._instead[key]}.")
            else:
                self._faults.add(line, f"`{key[:100]}` is not a key of {what}; known are {', '.join(known)}.")

    def text(self, node: Node, key: str) -> str | None:
        if not isinstance(node, Scalar):
            self._faults.add(node.line, f"`{key}` must be a text.")
            return None
        if node.plain and (node.text.lower() in _WORDS or _NUMBER.fullmatch(node.text)):
            said = f"`{node.text}`" if node.text else "nothing"
            self._faults.add(node.line, f"`{key}` must be a text, and this is {said}: put it into quotes.")
            return None
        return node.text

    def pattern(self, item: Mapping, key: str, pattern: re.Pattern[str], longest: int, allowed: str) -> str:
        node = item.items.get(key)
        text = self.text(node, key) if node is not None else None
        if node is None or text is None:
            return ""
        if len(text) > longest or not pattern.fullmatch(text):
            self._faults.add(node.line, f"`{key}` must be {allowed}; at most {longest} characters.")
        return text

    def choice(self, item: Mapping, key: str, kind: type[Choice]) -> Choice | None:
        node = item.items.get(key)
        if node is None:
            return None
        text = node.text if isinstance(node, Scalar) else None
        if text in tuple(kind):
            return kind(text)
        given = f", not `{text[:50]}`" if text else ""
        self._faults.add(node.line, f"`{key}` must be one of {', '.join(kind)}{given}.")
        return None

    def boolean(self, item: Mapping, key: str) -> bool | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        self._faults.add(node.line, f"`{key}` must be true or false.")
        return None

    def number(self, item: Mapping, key: str, largest: int, smallest: int = 0) -> int | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and node.plain and _WHOLE.fullmatch(node.text):
            number = int(node.text)
            if smallest <= number <= largest:
                return number
        self._faults.add(node.line, f"`{key}` must be a whole number from {smallest} to {largest}.")
        return None

    def duration(self, item: Mapping, key: str, shortest: int) -> int | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and _DURATION.fullmatch(node.text):
            seconds = sum(int(amount) * _UNITS[unit] for amount, unit in _PART.findall(node.text))
            if shortest <= seconds <= self._longest:
                return seconds
        self._faults.add(
            node.line,
            f"`{key}` must be a time up to {self._longest // _UNITS['d']}d, such as 90s, 30m, 2h or 1d12h.",
        )
        return None

    def listed(self, item: Mapping, key: str, read_one: Callable[[Node], Any]) -> list[Any]:
        node = item.items.get(key)
        if node is None:
            return []
        if not isinstance(node, Sequence):
            self._faults.add(node.line, f"`{key}` must be a list: [one, another].")
            return []
        if len(node.items) > MAX_LIST:
            self._faults.add(node.line, f"`{key}` has {len(node.items)} entries; the limit is {MAX_LIST}.")
            return []
        return [found for one in node.items if (found := read_one(one)) is not None]


# What is read once is not tried again (`++`, `*+`): trying again would remember every character of a long text.
_TOKEN = re.compile(
    r"""([ \t\r\n]*)(?:
     "([^"\\\x00-\x1f]*+)"                                                                           # 2: a text
    |([{}\[\]:,])                                                                                    # 3: a mark
    |(true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)(?![\w.+-])               # 4: a plain word
    |("(?:[^"\\\x00-\x1f]++|\\.)*+")                                                                 # 5: with escapes
    |(\Z)                                                                                            # 6: the end
    )""",
    re.VERBOSE,
)
_MARK, _PLAIN, _ESCAPED, _END = 3, 4, 5, 6


def looks_like_json(text: str) -> bool:
    """It begins with a brace: a file that YAML can write without one, and nearly always does."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def read_json(text: str, faults: Faults, bounds: Bounds) -> Node | None:
    """The one value of a file; None where it is empty."""
    check_size(text, bounds)
    return _Reading(text.removeprefix("\ufeff"), faults, bounds).value()


class _Reading:
    def __init__(self, text: str, faults: Faults, bounds: Bounds) -> None:
        self._text, self._faults = text, faults
        self._tree = Building(faults, bounds)
        self._next = _TOKEN.scanner(text).match  # type: ignore[attr-defined]
        self._line = 1
        self._found: re.Match[str]

    def value(self) -> Node | None:
        """Objects and lists are followed with a list of what is open, not by recursion."""
        kind = self._token()
        if kind == _END:
            return None
        opened: list[str] = []
        while True:
            kind = self._one(kind, opened)
            while opened and kind == _MARK and self._found[_MARK] == opened[-1]:
                opened.pop()
                self._tree.end()
                kind = self._token()
            if not opened:
                break
            if kind != _MARK or self._found[_MARK] != ",":
                self._refuse(f"a comma or {opened[-1]} is missing")
            kind = self._token()
            if opened[-1] == "}":
                kind = self._key(kind)
        if kind != _END:
            self._refuse("something follows after its end")
        return self._tree.root

    def _one(self, kind: int, opened: list[str]) -> int:
        """A value, as far as it goes without a comma; what comes behind it."""
        while kind == _MARK:
            mark = self._found[_MARK]
            if mark == "{":
                self._tree.begin(Mapping(self._line))
                opened.append("}")
            elif mark == "[":
                self._tree.begin(Sequence(self._line))
                opened.append("]")
            else:
                self._refuse(f"a value is missing before {mark}")
            kind = self._token()
            if kind == _MARK and self._found[_MARK] == opened[-1]:
                return kind
            if opened[-1] == "}":
                kind = self._key(kind)
        if kind == _END:
            self._refuse("it ends too early")
        self._scalar(kind)
        return self._token()

    def _key(self, kind: int) -> int:
        """A key and its colon; what comes behind them."""
        if kind in (_MARK, _PLAIN, _END):
            self._refuse("a key must be a text in double quotes")
        self._scalar(kind)
        if self._token() != _MARK or self._found[_MARK] != ":":
            self._refuse("a colon is missing behind a key")
        return self._token()

    def _scalar(self, kind: int) -> None:
        text = self._unescaped(self._found[kind]) if kind == _ESCAPED else self._found[kind]
        self._tree.scalar(self._line, text, kind == _PLAIN)

    def _unescaped(self, quoted: str) -> str:
        try:
            text: str = json.loads(quoted)
            return check_text(text, "a text")
        except json.JSONDecodeError:
            self._refuse("a text has an escape that JSON does not know")
        except InvalidInput as error:
            self._faults.refuse(self._line, error.message)

    def _token(self) -> int:
        """Read the next one; its kind."""
        found = self._next()
        if found is None:
            self._line += self._unread()
            self._refuse(
                "this cannot be read: a text that does not end, a comment, or a word that is not JSON's"
            )
        self._found = found
        space = found[1]
        if "\n" in space:
            self._line += space.count("\n")
        return found.lastindex or 0

    def _unread(self) -> int:
        """Lines between the last token and what cannot be read."""
        at = self._found.end() if hasattr(self, "_found") else 0
        rest = self._text[at:]
        return rest[: len(rest) - len(rest.lstrip(" \t\r\n"))].count("\n")

    def _refuse(self, what: str) -> NoReturn:
        self._faults.refuse(self._line, f"this is not JSON: {what}.")
