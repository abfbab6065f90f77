"""Differences between two versions of an atlas."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

from cortex_plane.gates.model.atlases import Atlas, AtlasChange, AtlasDiff, Gate
from cortex_plane.kernel.fields import adapter
from cortex_plane.policies.model.versions import FieldChange

MAX_CHANGES = 500
"""So many are listed; all are counted."""
MAX_VALUE = 2000
"""Characters of a text in a listed change."""
MAX_ITEMS = 100


Things = dict[str, Any]


def difference(before: Atlas, after: Atlas) -> AtlasDiff:
    changes: list[AtlasChange] = []
    counts = {"added": 0, "removed": 0, "changed": 0}
    for change in _changes(before, after):
        counts[change.change] += 1
        if len(changes) < MAX_CHANGES:
            changes.append(change)
    return AtlasDiff(atlas_id=after.atlas_id, before=before.version, after=after.version, changes=changes, **counts)


def _changes(before: Atlas, after: Atlas) -> Iterator[AtlasChange]:
    yield from _compared("atlas", _whole(before), _whole(after), dict)
    yield from _compared("gate", _by(before.gates, "gate_id"), _by(after.gates, "gate_id"), _gate_fields)
    yield from _compared("question", _questions(before), _questions(after), _fields_without("question_id"))
    for kind, entries in (
        ("context", "contexts"),
        ("capability", "capabilities"),
        ("policy", "policies"),
        ("action", "actions"),
    ):
        id = f"{kind}_id"
        old, new = _by(getattr(before, entries), id), _by(getattr(after, entries), id)
        yield from _compared(kind, old, new, _fields_without(id))


def _compared(
    kind: Any, before: Things, after: Things, fields: Callable[[Any], dict[str, Any]]
) -> Iterator[AtlasChange]:
    for id in sorted(before.keys() | after.keys()):
        if id not in before:
            yield AtlasChange(change="added", kind=kind, id=id, fields=[])
        elif id not in after:
            yield AtlasChange(change="removed", kind=kind, id=id, fields=[])
        elif before[id] != after[id]:
            changes = list(_fields(fields(before[id]), fields(after[id])))
            if changes:
                yield AtlasChange(change="changed", kind=kind, id=id, fields=changes)


def _fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield FieldChange(field=name, before=_short(before.get(name)), after=_short(after.get(name)))


def _whole(atlas: Atlas) -> Things:
    steward = {f"steward.{name}": value for name, value in _json(atlas.steward).items()}
    budget = {f"budget.{name}": value for name, value in _json(atlas.budget).items()}
    return {atlas.atlas_id: {"name": atlas.name, "description": atlas.description, **steward, **budget}}


def _questions(atlas: Atlas) -> Things:
    return {f"{gate.gate_id}/{question.question_id}": question for gate in atlas.gates for question in gate.questions}


def _by(things: Iterable[Any], id: str) -> Things:
    return {getattr(thing, id): thing for thing in things}


def _gate_fields(gate: Gate) -> dict[str, Any]:
    """Without its questions, which are compared one by one; their order is the gate's."""
    fields = _json(gate)
    for name in ("gate_id", "atlas_id"):
        del fields[name]
    fields["questions"] = [question.question_id for question in gate.questions]
    return _flat(fields, "trigger", "guidance")


def _fields_without(id: str) -> Callable[[Any], dict[str, Any]]:
    def fields(thing: Any) -> dict[str, Any]:
        data = _json(thing)
        del data[id]
        return _flat(data, "validation")

    return fields


def _flat(fields: dict[str, Any], *parts: str) -> dict[str, Any]:
    """What is a value of its own is compared field by field, too."""
    for part in parts:
        inner = fields.pop(part, None)
        if isinstance(inner, dict):
            fields |= {f"{part}.{name}": value for name, value in inner.items()}
        elif inner is not None:
            fields[part] = inner
    return fields


def _json(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = adapter(type(value)).dump_python(value, mode="json")
    return data


def _short(value: Any) -> Any:
    """A long text by its beginning, its length and its digest, so that two of them differ here, too."""
    match value:
        case str() if len(value) > MAX_VALUE:
            digest = hashlib.sha256(value.encode()).hexdigest()[:12]
            return f"{value[:MAX_VALUE]}… ({len(value)} characters, sha256 {digest}…)"
        case list():
            items = [_short(item) for item in value[:MAX_ITEMS]]
            digest = hashlib.sha256(orjson.dumps(value)).hexdigest()[:12]
            more = [f"… ({len(value)} in all, sha256 {digest}…)"] if len(value) > MAX_ITEMS else []
            return [*items, *more]
        case dict():
            return {name: _short(item) for name, item in value.items()}
    return value
