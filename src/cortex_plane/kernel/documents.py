"""YAML, read strictly: every value with its line, and nothing that a reader of the file would not see.

Anchors, aliases, tags and a second document are refused, and so are keys that come twice. What a plain word means is for
whoever knows which key it belongs to: `no` is a text here until somebody asks for a boolean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import InvalidInput, TooLarge
from cortex_plane.kernel.extras import extra

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
