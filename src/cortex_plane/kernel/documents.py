"""Strict YAML and JSON documents: values with their lines, bounded in size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import InvalidInput, TooLarge, extra

with extra("server"):
    import yaml  # type: ignore[import-untyped, unused-ignore]

MAX_DEPTH = 20
MAX_VALUES = 200_000
MAX_LISTED_FAULTS = 10
MANY_FAULTS = 50
MAX_FAULTS = 10_000
"""Faults after which the rest of a file is not read."""

_PLAIN = re.compile(r"[A-Za-z][A-Za-z_]*")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc, unused-ignore]
    """Texts are quoted unless they are words, so that none is read as something else."""


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _represent_text)


def write_document(value: dict[str, Any]) -> str:
    """YAML that `read_document` reads as this value."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def load_document(text: str) -> Any:
    """The values of a document of ours, without their lines."""
    return yaml.safe_load(text)


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
_Y: Any = yaml


@dataclass(slots=True)
class ScalarNode:
    line: int
    text: str
    plain: bool
    """Without quotes."""


@dataclass(frozen=True, slots=True)
class ListNode:
    line: int
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MappingNode:
    line: int
    items: dict[str, Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


Node = ScalarNode | ListNode | MappingNode


class Faults:
    """What is wrong with a file, line by line."""

    def __init__(self, code: str, hint: str, name: str | None = None) -> None:
        """``name``: of the file; it stands before each line number."""
        self._code, self._hint, self._name = code, hint, name
        self._faults: list[tuple[int, str]] = []

    def add(self, line: int, message: str) -> None:
        self._faults.append((line, message))
        if len(self._faults) >= MAX_FAULTS:
            raise self._error()

    @property
    def many(self) -> bool:
        """Whether there are so many that suggestions are left out: to look for them takes time."""
        return len(self._faults) >= MANY_FAULTS

    def refuse(self, line: int, message: str) -> NoReturn:
        """Add a fault after which the rest of the file cannot be read."""
        self.add(line, message)
        raise self._error()

    def raise_any(self) -> None:
        if self._faults:
            raise self._error()

    def at(self, line: int) -> str:
        return f"line {line}" if self._name is None else f"{self._name}:{line}"

    def _error(self) -> InvalidInput:
        faults = sorted(set(self._faults))
        messages = [f"{self.at(line)}: {message}" for line, message in faults[:MAX_LISTED_FAULTS]]
        if len(faults) > MAX_LISTED_FAULTS:
            messages.append(f"and {len(faults) - MAX_LISTED_FAULTS} more")
        return InvalidInput("\n".join(messages), code=self._code, hint=self._hint)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a file may be."""

    bytes: int
    depth: int = MAX_DEPTH
    nodes: int = MAX_VALUES
    """Values in it: each takes memory, however short it is."""


def read_document(text: str, faults: Faults, bounds: Bounds, what: str, *, is_json: bool = False) -> MappingNode:
    """The mapping that a file holds; ``what`` tells the author of any other file what to write. JSON is YAML as well,
    so one reader builds both; a JSON file is first checked with the stricter rules of JSON."""
    size = len(text.encode(errors="surrogatepass"))
    if size > bounds.bytes:
        raise TooLarge(f"The file is {size} bytes; the limit is {bounds.bytes}.")
    check_text(text, "text")
    if is_json:
        text = _json_as_yaml(text.removeprefix("\ufeff"), faults, bounds)
    try:
        root = _Builder(_Y.parse(text, Loader=_Loader), faults, bounds).document()
    except _Y.YAMLError as error:
        reason = str(getattr(error, "problem", None) or error).splitlines()[0]
        faults.refuse(_line_of(error, text), f"this is not {'JSON' if is_json else 'YAML'}: {reason}.")
    if not isinstance(root, MappingNode) or not root.items:
        faults.refuse(root.line if root is not None else 1, what)
    return root


def _line_of(error: Exception, text: str) -> int:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return int(mark.line) + 1
    position = getattr(error, "position", None)  # of a character that YAML does not allow
    return _line_at(text, position) if isinstance(position, int) else 1


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


# What YAML reads otherwise than JSON: pairs of surrogates, and characters that YAML has no place for or takes as line breaks.
_ESCAPED = re.compile(
    r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)|[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
)


def looks_like_json(text: str) -> bool:
    """It begins with a brace: a file that YAML can write without one, and nearly always does."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def _json_as_yaml(text: str, faults: Faults, bounds: Bounds) -> str:
    """The same text, in the part of JSON that YAML reads alike; line breaks stay where they are."""
    try:
        if text.strip(" \t\r\n"):
            json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        faults.refuse(error.lineno, f"this is not JSON: {error.msg[0].lower()}{error.msg[1:]}.")
    except ValueError as error:  # a word or a number that JSON or Python does not read
        faults.refuse(1, f"this is not JSON: {str(error).partition(';')[0]}.")
    except RecursionError:
        faults.refuse(1, f"this is nested deeper than {bounds.depth} levels.")

    def rewrite(match: re.Match[str]) -> str:
        part = match[0]
        if not part.startswith("\\"):
            return f"\\u{ord(part):04x}"
        if part[:3].lower() != "\\ud" or part[3] in "01234567":
            return part
        try:
            return check_text(json.loads(f'"{part}"'), "a text")
        except InvalidInput as error:
            faults.refuse(_line_at(text, match.start()), error.message)

    return _ESCAPED.sub(rewrite, text)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a word of JSON")


class _Builder:
    """Builds the nodes of one document from the events of the YAML parser."""

    def __init__(self, events: Iterator[Any], faults: Faults, bounds: Bounds) -> None:
        self._events, self._faults, self._bounds = events, faults, bounds
        self._nodes = 0

    def document(self) -> Node | None:
        root: Node | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, _Y.NodeEvent):
                root = self._node(event, 0)
            documents += type(event) is _Y.DocumentStartEvent
            if documents > 1:
                line = event.start_mark.line + 1
                self._faults.refuse(line, "a file holds one document, and here a second one begins.")
        return root

    def _node(self, event: Any, depth: int) -> Node:
        line = self._line_without_marks(event)
        self._nodes += 1
        if self._nodes > self._bounds.nodes:
            raise TooLarge(f"The file holds more than {self._bounds.nodes} values.")
        if type(event) is _Y.ScalarEvent:
            return ScalarNode(line, self._text(event, line), event.implicit[0] and event.style in (None, ""))
        if depth >= self._bounds.depth:
            self._faults.refuse(line, f"this is nested deeper than {self._bounds.depth} levels.")
        if type(event) is _Y.MappingStartEvent:
            return self._mapping(line, depth)
        items: list[Node] = []
        while type(item := next(self._events)) is not _Y.SequenceEndEvent:
            items.append(self._node(item, depth + 1))
        return ListNode(line, items)

    def _mapping(self, line: int, depth: int) -> MappingNode:
        mapping = MappingNode(line)
        while type(key := next(self._events)) is not _Y.MappingEndEvent:
            key_line = self._line_without_marks(key)
            if type(key) is not _Y.ScalarEvent:
                self._faults.refuse(key_line, "a key must be a word.")
            text = self._text(key, key_line)
            first = mapping.lines.setdefault(text, key_line)
            if text in mapping.items:
                self._faults.add(key_line, f"`{text[:100]}` stands here twice (first in line {first}).")
            mapping.items[text] = self._node(next(self._events), depth + 1)
        return mapping

    def _line_without_marks(self, event: Any) -> int:
        line: int = event.start_mark.line + 1
        if event.anchor is not None:
            self._faults.refuse(line, "anchors and aliases (& and *) are not read: write it out.")
        if event.tag is not None and event.tag != "!":
            self._faults.refuse(line, f"the tag {event.tag} is not read: leave it out.")
        return line

    def _text(self, event: Any, line: int) -> str:
        text: str = event.value
        if event.style == '"' and ("\x00" in text or not text.isascii()):  # an escape sequence wrote it
            try:
                check_text(text, "a text")
            except InvalidInput as error:
                self._faults.refuse(line, error.message)
        return text
