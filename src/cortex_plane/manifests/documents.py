"""YAML, read strictly: every value with its line, and nothing that a reader of the file would not see.

Anchors, aliases, tags and a second document are refused, and so are keys that come twice. What a plain word means is for
whoever knows which key it belongs to: `no` is a text here until somebody asks for a boolean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped, unused-ignore]

from cortex_plane.domain.canonical import check_text
from cortex_plane.domain.errors import InvalidInput, TooLarge

MAX_DEPTH = 20
MAX_FAULTS = 10

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
_Y: Any = yaml


@dataclass(frozen=True, slots=True)
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

    def __init__(self, code: str, hint: str) -> None:
        self._code = code
        self._hint = hint
        self._found: list[tuple[int, str]] = []

    def add(self, line: int, message: str) -> None:
        self._found.append((line, message))

    def __bool__(self) -> bool:
        return bool(self._found)

    def refuse(self, line: int, message: str) -> NoReturn:
        """Where the rest of the file cannot be read."""
        self.add(line, message)
        raise self._error()

    def raise_any(self) -> None:
        if self._found:
            raise self._error()

    def _error(self) -> InvalidInput:
        found = sorted(set(self._found))
        told = [f"line {line}: {message}" for line, message in found[:MAX_FAULTS]]
        if len(found) > MAX_FAULTS:
            told.append(f"and {len(found) - MAX_FAULTS} more")
        return InvalidInput("\n".join(told), code=self._code, hint=self._hint)


def read_document(text: str, faults: Faults, max_bytes: int) -> Node | None:
    """The one document of a file; None where it is empty."""
    size = len(text.encode(errors="surrogatepass"))
    if size > max_bytes:
        raise TooLarge(f"The file is {size} bytes; the limit is {max_bytes}.")
    check_text(text, "text")
    try:
        return _build(_Y.parse(text, Loader=_Loader), faults)
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


def _build(events: Iterator[Any], faults: Faults) -> Node | None:
    root: Node | None = None
    documents = 0
    opened: list[_Open] = []
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, _Y.DocumentStartEvent):
            documents += 1
            if documents > 1:
                faults.refuse(line, "a file holds one document, and here a second one begins.")
            continue
        if isinstance(event, (_Y.SequenceEndEvent, _Y.MappingEndEvent)):
            opened.pop()
            continue
        if isinstance(event, _Y.AliasEvent) or getattr(event, "anchor", None):
            faults.refuse(line, "anchors and aliases (& and *) are not read: write it out.")
        if not isinstance(event, _Y.NodeEvent):
            continue
        if event.tag is not None and event.tag != "!":
            faults.refuse(line, f"the tag {event.tag} is not read: leave it out.")
        node = _node(event, line)
        if not opened:
            root = node
        else:
            _attach(opened[-1], node, line, faults)
        if not isinstance(node, Scalar):
            if len(opened) >= MAX_DEPTH:
                faults.refuse(line, f"this is nested deeper than {MAX_DEPTH} levels.")
            opened.append(_Open(node))
    return root


def _node(event: Any, line: int) -> Node:
    if isinstance(event, _Y.ScalarEvent):
        return Scalar(line, event.value, plain=bool(event.implicit[0]) and event.style in (None, ""))
    return Sequence(line) if isinstance(event, _Y.SequenceStartEvent) else Mapping(line)


def _attach(parent: _Open, node: Node, line: int, faults: Faults) -> None:
    if isinstance(parent.node, Sequence):
        parent.node.items.append(node)
        return
    if parent.key is None:
        if not isinstance(node, Scalar):
            faults.refuse(line, "a key must be a word.")
        if node.text in parent.node.items:
            faults.add(
                line, f"`{node.text[:100]}` stands here twice (first in line {parent.node.lines[node.text]})."
            )
        parent.key = node.text
        parent.node.lines.setdefault(node.text, line)
        return
    parent.node.items[parent.key] = node
    parent.key = None
