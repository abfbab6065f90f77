"""Shapes of the files that stewards write: which keys there are, and which values they take.

From the same table come the reader, which reports every fault with its line, and the JSON Schema for editors. A shape returns
a plain JSON value as it was written: no default is filled in, so the same content always has the same digest.
"""

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortex_plane.kernel.documents import Faults, ListNode, MappingNode, Node, ScalarNode
from cortex_plane.kernel.text import unseen_in

_DIGITS = re.compile(r"[0-9]+")
_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0x[0-9a-fA-F]+|0o[0-7]+")
_DURATION = re.compile(r"(?:[0-9]{1,7}[smhd])+")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NOT_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
VISIBLE = r"[^\x00-\x20\x7f]"
LINE = rf"[^\x00-\x1f\x7f]*{VISIBLE}[^\x00-\x1f\x7f]*"
"""One line with something to see on it."""
MAX_LIST = 10_000

Defs = dict[str, Any]


def nearest(word: str, words: Iterable[str], faults: Faults) -> str:
    """`; did you mean …?`, where something is near. Looked for only while there are few faults: it takes time."""
    if faults.many:
        return ""
    matches = difflib.get_close_matches(word[:100], list(words)[:1000], 1, 0.6)
    return f"; did you mean `{matches[0]}`?" if matches else ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One file while it is read."""

    faults: Faults
    instead: Mapping[str, str] | None = None
    """What to write for keys that others use; then a key that is not known is answered with all that are."""
    misplaced: Callable[[str, MappingNode], str | None] | None = None
    """Of a key that is not known, with the mapping that has it: where it belongs."""

    def fault(self, line: int, message: str) -> Any | None:
        """Adds a fault. None stands for the value that was not read."""
        self.faults.add(line, message)
        return None

    def text(self, node: Node, key: str) -> str | None:
        if not isinstance(node, ScalarNode):
            return self.fault(node.line, f"`{key}` must be a text.")
        if node.plain and (node.text.lower() in _WORDS or _NUMBER.fullmatch(node.text)):
            value = f"`{node.text}`" if node.text else "nothing"
            return self.fault(node.line, f"`{key}` must be a text, and this is {value}: put it into quotes.")
        return node.text


class Shape(ABC):
    @abstractmethod
    def read(self, node: Node, key: str, reading: Reading) -> Any:
        """The plain value; None where it is not one, which is then a fault."""

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        """Its JSON Schema. ``defs`` takes those that others refer to."""
        return {}


@dataclass(frozen=True, slots=True)
class Text(Shape):
    longest: int
    pattern: str | None = None
    """Of the whole text; read alike by Python and by JSON Schema."""
    allowed: str = "a text with something in it"
    name: str = ""
    """What faults call it, where that is not its key."""
    visible: bool = False
    """People decide by what it looks like: no character in it is hidden, or turns text around."""
    _compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        regex = re.compile(self.pattern) if self.pattern else re.compile(rf".*?{VISIBLE}.*", re.DOTALL)
        object.__setattr__(self, "_compiled", regex)

    def read(self, node: Node, key: str, reading: Reading) -> str | None:
        what = self.name or f"`{key}`"
        if self.name and not isinstance(node, ScalarNode):
            return reading.fault(node.line, f"{what} must be {self.allowed}.")
        text = reading.text(node, key)
        if text is None:
            return None
        if len(text) > self.longest:
            return reading.fault(node.line, f"`{key}` has {len(text)} characters; the limit is {self.longest}.")
        if self.visible and (unseen := unseen_in(text)) is not None:
            return reading.fault(
                node.line,
                f"{what} has a character that nobody sees (U+{ord(unseen):04X}) at position {text.index(unseen) + 1}: leave it out.",
            )
        if not self._compiled.fullmatch(text):
            other = f", not `{text[:50]}`" if text.isprintable() and text.strip() else ""
            return reading.fault(node.line, f"{what} must be {self.allowed}{other}.")
        return text

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        pattern = f"^(?:{self.pattern})$" if self.pattern else VISIBLE
        return {"type": "string", "minLength": 1, "maxLength": self.longest, "pattern": pattern}


@dataclass(frozen=True, slots=True)
class Flag(Shape):
    def read(self, node: Node, key: str, reading: Reading) -> bool | None:
        if isinstance(node, ScalarNode) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        return reading.fault(node.line, f"`{key}` must be true or false.")

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Amount(Shape):
    smallest: float
    largest: float
    whole: bool = False
    digits: bool = False
    """Written with digits alone: 2, and not 2.0 or +2."""

    def read(self, node: Node, key: str, reading: Reading) -> int | float | None:
        number = _number(node.text) if isinstance(node, ScalarNode) and node.plain else None
        if self.digits and isinstance(node, ScalarNode) and not _DIGITS.fullmatch(node.text):
            number = None
        if number is None or not self.smallest <= number <= self.largest or (self.whole and number % 1):
            kind = "a whole number" if self.whole else "a number"
            return reading.fault(node.line, f"`{key}` must be {kind} from {self.smallest:g} to {self.largest:g}.")
        return number

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        return {"type": ("integer" if self.whole else "number"), "minimum": self.smallest, "maximum": self.largest}


@dataclass(frozen=True, slots=True)
class Duration(Shape):
    """A time such as 1d12h, in seconds."""

    longest: int
    zero: tuple[str, ...] = ()
    """Words for no time at all."""

    def read(self, node: Node, key: str, reading: Reading) -> int | None:
        text = node.text if isinstance(node, ScalarNode) else ""
        if text in self.zero and text:
            return 0
        if _DURATION.fullmatch(text):
            seconds = sum(int(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"[0-9]+[smhd]", text))
            if 0 < seconds <= self.longest:
                return seconds
        days = self.longest // _UNITS["d"]
        return reading.fault(node.line, f"`{key}` must be a time up to {days}d, such as 90s, 30m, 2h or 1d12h.")


@dataclass(frozen=True, slots=True)
class OneOf(Shape):
    words: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names for them; the manifest then has ours."""
    why_not: str = ""
    """Why there are no others, where somebody may expect them."""
    name: str = ""
    """What faults call it, where that is not its key."""

    def read(self, node: Node, key: str, reading: Reading) -> str | None:
        word = node.text if isinstance(node, ScalarNode) else ""
        if word in self.words:
            return word
        if word in self.aliases:
            return self.aliases[word]
        if self.why_not:
            return reading.fault(node.line, f"`{key}` cannot be `{word[:50]}` here: {self.why_not}")
        near = nearest(word, (*self.words, *self.aliases), reading.faults) if word else ""
        other = f", not `{word[:50]}`" if word else ""
        return reading.fault(
            node.line, f"{self.name or f'`{key}`'} must be one of {', '.join(self.words)}{other}{near or '.'}"
        )

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        return {"enum": [*self.words, *self.aliases]}


@dataclass(frozen=True, slots=True)
class ListOf(Shape):
    of: Shape
    least: int = 0
    most: int | None = MAX_LIST

    def read(self, node: Node, key: str, reading: Reading) -> list[Any] | None:
        if not isinstance(node, ListNode):
            return reading.fault(node.line, f"`{key}` must be a list: [one, another].")
        if len(node.items) < self.least:
            reading.fault(node.line, f"`{key}` must have at least {self.least} entry.")
        if self.most is not None and len(node.items) > self.most:
            return reading.fault(node.line, f"`{key}` has {len(node.items)} entries; the limit is {self.most}.")
        return [self.of.read(item, key, reading) for item in node.items]

    def schema(self, defs: Defs) -> dict[str, Any]:
        bounds = {"minItems": self.least} if self.least else {}
        if self.most is not None:
            bounds["maxItems"] = self.most
        return {"type": "array", "items": self.of.schema(defs), **bounds}


@dataclass(frozen=True, slots=True)
class MapOf(Shape):
    """Keys that the steward chooses."""

    keys: Text
    of: Shape
    most: int = MAX_LIST

    def read(self, node: Node, key: str, reading: Reading) -> dict[str, Any] | None:
        if not isinstance(node, MappingNode):
            return reading.fault(node.line, f"`{key}` must be a mapping.")
        if len(node.items) > self.most:
            return reading.fault(node.line, f"`{key}` has {len(node.items)} entries; the limit is {self.most}.")
        values = {}
        for name, item in node.items.items():
            self.keys.read(ScalarNode(node.lines[name], name, plain=False), key, reading)
            values[name] = self.of.read(item, name[:100], reading)
        return values

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {
            "type": "object", "propertyNames": self.keys.schema(defs), "maxProperties": self.most,
            "additionalProperties": self.of.schema(defs),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class JsonObject(Shape):
    """Whatever its keys are: for code, or for whoever checks with it."""

    def read(self, node: Node, key: str, reading: Reading) -> dict[str, Any] | None:
        if not isinstance(node, MappingNode):
            return reading.fault(node.line, f"`{key}` must be a mapping.")
        return {name: json_of(item, key, reading) for name, item in node.items.items()}

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class UnreadNode(Shape):
    """Left to the reader of its file, as a node."""

    def read(self, node: Node, key: str, reading: Reading) -> Node:  # noqa: ARG002
        return node


@dataclass(frozen=True, slots=True)
class TextOrJson(Shape):
    """A text, or a list or mapping written out."""

    text: Text

    def read(self, node: Node, key: str, reading: Reading) -> Any:
        return self.text.read(node, key, reading) if isinstance(node, ScalarNode) else json_of(node, key, reading)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"anyOf": [self.text.schema(defs), {"type": ["object", "array"]}]}


@dataclass(frozen=True, slots=True)
class Field:
    shape: Shape
    description: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Record(Shape):
    """A mapping whose keys are known."""

    name: str
    what: str
    """Such as `a checkpoint`."""
    fields: Mapping[str, Field]
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Keys of other kinds of it, and which they are."""

    def read(self, node: Node, key: str, reading: Reading) -> dict[str, Any] | None:
        if not isinstance(node, MappingNode):
            return reading.fault(node.line, f"`{key}` must be {self.what}: a mapping with {', '.join(self.fields)}.")
        values = {}
        for name, item in node.items.items():
            spec = self.fields.get(name)
            if spec is None:
                self._refuse(node, name, reading)
            else:
                values[name] = spec.shape.read(item, name, reading)
        for name, spec in self.fields.items():
            if spec.required and name not in values:
                reading.fault(node.line, f"{self.what} needs `{name}`, and this one has none.")
        return values

    def _refuse(self, node: MappingNode, name: str, reading: Reading) -> None:
        line, fault, keys = node.lines[name], f"`{name[:100]}` is not a key of {self.what}", ", ".join(self.fields)
        if name in self.elsewhere:
            reading.fault(line, f"{fault}; it belongs to {self.elsewhere[name]}.")
        elif reading.misplaced is not None and (place := reading.misplaced(name, node)) is not None:
            reading.fault(line, f"{fault}; {place}")
        elif reading.instead is None:
            reading.fault(line, f"{fault}{nearest(name, self.fields, reading.faults) or '.'} Known are {keys}.")
        elif name in reading.instead:
            reading.fault(line, f"{fault}; use {reading.instead[name]}.")
        else:
            reading.fault(line, f"{fault}; known are {keys}.")

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}
            defs[self.name] = {
                "type": "object",
                "properties": {
                    name: {"description": spec.description, **spec.shape.schema(defs)}
                    for name, spec in self.fields.items()
                },
                "required": [name for name, spec in self.fields.items() if spec.required],
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{self.name}"}


@dataclass(frozen=True, slots=True)
class Tagged(Shape):
    """A mapping with one key that says which others there are."""

    name: str
    what: str
    tag: str
    common: Mapping[str, Field]
    kinds: Mapping[str, Mapping[str, Field]]
    description: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    """Where the tag is left out."""
    _records: dict[str, Record] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        homes: dict[str, list[str]] = {}
        for kind, fields in self.kinds.items():
            for key in fields:
                homes.setdefault(key, []).append(kind)
        records = {}
        for kind, fields in self.kinds.items():
            words = OneOf((kind,), {other: ours for other, ours in self.aliases.items() if ours == kind})
            tag = Field(words, self.description, required=kind != self.default)
            elsewhere = {key: f"the {self.tag} {', '.join(tags)}" for key, tags in homes.items() if key not in fields}
            name, what = f"{self.name}_{kind}", f"{self.what} of the {self.tag} {kind}"
            records[kind] = Record(name, what, {**self.common, self.tag: tag, **fields}, elsewhere)
        object.__setattr__(self, "_records", records)

    def read(self, node: Node, key: str, reading: Reading) -> dict[str, Any] | None:
        if not isinstance(node, MappingNode):
            return reading.fault(node.line, f"`{key}` must be {self.what}: a mapping with `{self.tag}`.")
        tag = node.items.get(self.tag)
        if tag is None and self.default is None:
            return reading.fault(
                node.line, f"{self.what} needs `{self.tag}`, and this one has none: one of {', '.join(self.kinds)}."
            )
        kind = self.default
        if tag is not None:
            kind = OneOf(tuple(self.kinds), self.aliases).read(tag, self.tag, reading)
        return None if kind is None else self._records[kind].read(node, key, reading)

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}
            defs[self.name] = {"oneOf": [record.schema(defs) for record in self._records.values()]}
        return {"$ref": f"#/$defs/{self.name}"}


def json_of(node: Node, key: str, reading: Reading) -> Any:
    """A value whose keys nobody here knows: words and numbers as JSON has them, everything else is a text."""
    if isinstance(node, MappingNode):
        return {name: json_of(item, key, reading) for name, item in node.items.items()}
    if isinstance(node, ListNode):
        return [json_of(item, key, reading) for item in node.items]
    if not node.plain:
        return node.text
    if node.text in _WORDS:
        return _WORDS[node.text]
    if _NOT_JSON.fullmatch(node.text):
        return reading.fault(node.line, f"`{key}` holds {node.text}, which JSON does not have.")
    number = _number(node.text)
    if number is None and _FLOAT.fullmatch(node.text):
        reading.fault(node.line, f"`{key}` holds a number that is too large: put it into quotes.")
    return node.text if number is None else number


def _number(text: str) -> int | float | None:
    """None where it is none, or none that survives: beyond 64 bits."""
    if _INTEGER.fullmatch(text):
        whole = int(text)
        return whole if _SMALLEST <= whole <= _LARGEST else None
    if not _FLOAT.fullmatch(text):
        return None
    number = float(text)
    if not math.isfinite(number):
        return None
    if number.is_integer():  # as JSONB gives it back
        whole = int(number)
        return whole if _SMALLEST <= whole <= _LARGEST else None
    return number
