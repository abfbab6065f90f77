"""Shapes of a manifest: one table says which keys there are and what may stand there.

Two things are made from it: the reader, which names every fault with its line, and the JSON Schema for editors. What a shape
gives back is a plain JSON value, as it was written: nothing is filled in, so the same content has the same digest for ever.
"""

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from typing import Any

from cortex_plane.kernel.documents import Faults, Mapping, Node, Scalar, Sequence, Values

_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: MappingOf[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
VISIBLE = r"[^\x00-\x20\x7f]"
LINE = rf"[^\x00-\x1f\x7f]*{VISIBLE}[^\x00-\x1f\x7f]*"
"""One line with something to see on it."""
MAX_LIST = 10_000

Defs = dict[str, Any]


def nearest(word: str, known: Iterable[str], faults: Faults) -> str:
    """`; did you mean …?`, where something is near. Looked for only while there are few faults: it takes time."""
    if faults.many:
        return ""
    found = difflib.get_close_matches(word[:100], list(known)[:1000], 1, 0.6)
    return f"; did you mean `{found[0]}`?" if found else ""


class Shape(ABC):
    @abstractmethod
    def read(self, node: Node, key: str, values: Values) -> Any:
        """The plain value; None where it is not one, which is then a fault."""

    @abstractmethod
    def schema(self, defs: Defs) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Text(Shape):
    longest: int
    pattern: str | None = None
    """Of the whole text; read alike by Python and by JSON Schema."""
    allowed: str = "a text with something in it"
    _compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compiled = re.compile(self.pattern) if self.pattern else re.compile(rf".*?{VISIBLE}.*", re.DOTALL)
        object.__setattr__(self, "_compiled", compiled)

    def read(self, node: Node, key: str, values: Values) -> str | None:
        text = values.text(node, key)
        if text is None:
            return None
        if len(text) > self.longest:
            values.fault(node.line, f"`{key}` has {len(text)} characters; the limit is {self.longest}.")
            return None
        if not self._compiled.fullmatch(text):
            given = f", not `{text[:50]}`" if text.isprintable() and text.strip() else ""
            values.fault(node.line, f"`{key}` must be {self.allowed}{given}.")
            return None
        return text

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        pattern = f"^(?:{self.pattern})$" if self.pattern else VISIBLE
        return {"type": "string", "minLength": 1, "maxLength": self.longest, "pattern": pattern}


@dataclass(frozen=True, slots=True)
class Flag(Shape):
    def read(self, node: Node, key: str, values: Values) -> bool | None:
        if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        values.fault(node.line, f"`{key}` must be true or false.")
        return None

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Amount(Shape):
    smallest: float
    largest: float
    whole: bool = False

    def read(self, node: Node, key: str, values: Values) -> int | float | None:
        number = _number(node.text) if isinstance(node, Scalar) and node.plain else None
        if number is None or not self.smallest <= number <= self.largest or (self.whole and number % 1):
            kind = "a whole number" if self.whole else "a number"
            values.fault(node.line, f"`{key}` must be {kind} from {self.smallest:g} to {self.largest:g}.")
            return None
        return number

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        kind = "integer" if self.whole else "number"
        return {"type": kind, "minimum": self.smallest, "maximum": self.largest}


@dataclass(frozen=True, slots=True)
class Choice(Shape):
    words: tuple[str, ...]
    aliases: MappingOf[str, str] = field(default_factory=dict)
    """Other names for them; the manifest then has ours."""
    why_not: str = ""
    """Why there are no others, where somebody may expect them."""

    def read(self, node: Node, key: str, values: Values) -> str | None:
        word = node.text if isinstance(node, Scalar) else ""
        if word in self.words:
            return word
        if word in self.aliases:
            return self.aliases[word]
        if self.why_not:
            values.fault(node.line, f"`{key}` cannot be `{word[:50]}` here: {self.why_not}")
            return None
        near = nearest(word, (*self.words, *self.aliases), values.faults) if word else ""
        given = f", not `{word[:50]}`" if word else ""
        values.fault(node.line, f"`{key}` must be one of {', '.join(self.words)}{given}{near or '.'}")
        return None

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        return {"enum": [*self.words, *self.aliases]}


@dataclass(frozen=True, slots=True)
class ListOf(Shape):
    of: Shape
    least: int = 0
    most: int | None = MAX_LIST

    def read(self, node: Node, key: str, values: Values) -> list[Any] | None:
        if not isinstance(node, Sequence):
            values.fault(node.line, f"`{key}` must be a list: [one, another].")
            return None
        if len(node.items) < self.least:
            values.fault(node.line, f"`{key}` must have at least {self.least} entry.")
        if self.most is not None and len(node.items) > self.most:
            values.fault(node.line, f"`{key}` has {len(node.items)} entries; the limit is {self.most}.")
            return None
        return [self.of.read(each, key, values) for each in node.items]

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

    def read(self, node: Node, key: str, values: Values) -> dict[str, Any] | None:
        if not isinstance(node, Mapping):
            values.fault(node.line, f"`{key}` must be a mapping.")
            return None
        if len(node.items) > self.most:
            values.fault(node.line, f"`{key}` has {len(node.items)} entries; the limit is {self.most}.")
            return None
        made = {}
        for name, each in node.items.items():
            self.keys.read(Scalar(node.lines[name], name, plain=False), key, values)
            made[name] = self.of.read(each, name[:100], values)
        return made

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {
            "type": "object", "propertyNames": self.keys.schema(defs), "maxProperties": self.most,
            "additionalProperties": self.of.schema(defs),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class JsonObject(Shape):
    """Whatever its keys are: for code, or for whoever checks with it."""

    def read(self, node: Node, key: str, values: Values) -> dict[str, Any] | None:
        if not isinstance(node, Mapping):
            values.fault(node.line, f"`{key}` must be a mapping.")
            return None
        return {name: json_of(each, key, values) for name, each in node.items.items()}

    def schema(self, defs: Defs) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class TextOrJson(Shape):
    """A text, or a list or mapping written out."""

    text: Text

    def read(self, node: Node, key: str, values: Values) -> Any:
        return self.text.read(node, key, values) if isinstance(node, Scalar) else json_of(node, key, values)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"anyOf": [self.text.schema(defs), {"type": ["object", "array"]}]}


@dataclass(frozen=True, slots=True)
class Field:
    shape: Shape
    said: str
    """For whoever writes one."""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Record(Shape):
    """A mapping whose keys are known."""

    name: str
    what: str
    """Such as `a checkpoint`."""
    fields: MappingOf[str, Field]
    elsewhere: MappingOf[str, str] = field(default_factory=dict)
    """Keys of other kinds of it, and which they are."""

    def read(self, node: Node, key: str, values: Values) -> dict[str, Any] | None:
        if not isinstance(node, Mapping):
            values.fault(node.line, f"`{key}` must be {self.what}: a mapping with {', '.join(self.fields)}.")
            return None
        made = {}
        for name, each in node.items.items():
            known = self.fields.get(name)
            if known is None:
                self._refuse(node.lines[name], name, values)
            else:
                made[name] = known.shape.read(each, name, values)
        for name, known in self.fields.items():
            if known.required and name not in made:
                values.fault(node.line, f"{self.what} needs `{name}`, and this one has none.")
        return made

    def _refuse(self, line: int, name: str, values: Values) -> None:
        shown = f"`{name[:100]}` is not a key of {self.what}"
        if name in self.elsewhere:
            values.fault(line, f"{shown}; it belongs to {self.elsewhere[name]}.")
            return
        near = nearest(name, self.fields, values.faults)
        values.fault(line, f"{shown}{near or '.'} Known are {', '.join(self.fields)}.")

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}
            defs[self.name] = {
                "type": "object",
                "properties": {
                    name: {"description": each.said, **each.shape.schema(defs)}
                    for name, each in self.fields.items()
                },
                "required": [name for name, each in self.fields.items() if each.required],
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{self.name}"}


@dataclass(frozen=True, slots=True)
class Tagged(Shape):
    """A mapping with one key that says which others there are."""

    name: str
    what: str
    tag: str
    common: MappingOf[str, Field]
    kinds: MappingOf[str, MappingOf[str, Field]]
    said: str
    """Of the tag."""
    aliases: MappingOf[str, str] = field(default_factory=dict)
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
            words = Choice((kind,), {other: ours for other, ours in self.aliases.items() if ours == kind})
            tag = Field(words, self.said, required=kind != self.default)
            elsewhere = {
                key: f"the {self.tag} {', '.join(where)}" for key, where in homes.items() if key not in fields
            }
            records[kind] = Record(
                f"{self.name}_{kind}",
                f"{self.what} of the {self.tag} {kind}",
                {**self.common, self.tag: tag, **fields},
                elsewhere,
            )
        object.__setattr__(self, "_records", records)

    def read(self, node: Node, key: str, values: Values) -> dict[str, Any] | None:
        if not isinstance(node, Mapping):
            values.fault(node.line, f"`{key}` must be {self.what}: a mapping with `{self.tag}`.")
            return None
        given = node.items.get(self.tag)
        if given is None and self.default is None:
            values.fault(
                node.line, f"{self.what} needs `{self.tag}`, and this one has none: one of {self._kinds()}."
            )
            return None
        kind = self.default
        if given is not None:
            kind = Choice(tuple(self.kinds), self.aliases).read(given, self.tag, values)
        return None if kind is None else self._records[kind].read(node, key, values)

    def _kinds(self) -> str:
        return ", ".join(self.kinds)

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}
            defs[self.name] = {"oneOf": [record.schema(defs) for record in self._records.values()]}
        return {"$ref": f"#/$defs/{self.name}"}


def json_of(node: Node, key: str, values: Values) -> Any:
    """A value whose keys nobody here knows: words and numbers as JSON has them, everything else is a text."""
    if isinstance(node, Mapping):
        return {name: json_of(each, key, values) for name, each in node.items.items()}
    if isinstance(node, Sequence):
        return [json_of(each, key, values) for each in node.items]
    if not node.plain:
        return node.text
    if node.text in _WORDS:
        return _WORDS[node.text]
    if _NOT_JSON.fullmatch(node.text):
        values.fault(node.line, f"`{key}` holds {node.text}, which JSON does not have.")
        return None
    number = _number(node.text)
    if number is None and _FLOAT.fullmatch(node.text):
        values.fault(node.line, f"`{key}` holds a number that is too large: put it into quotes.")
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
