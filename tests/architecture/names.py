"""The names that the package defines, and which of them are participles."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "cortex_plane"

NO_PARTICIPLES = frozenset(
    [
        "need",
        "seed",
        "feed",
        "speed",
        "embed",
        "exceed",
        "proceed",
        "red",
        "bed",
        "shed",
        "id",
        "hundred",
        "shared",
        "nested",
        "typed",
    ]
)
"""Words that end in -ed and are none."""
STATES = frozenset(
    [
        "allowed",
        "approved",
        "cancelled",
        "completed",
        "confirmed",
        "delivered",
        "denied",
        "enabled",
        "expired",
        "failed",
        "granted",
        "held",
        "passed",
        "published",
        "removed",
        "sealed",
        "settled",
        "truncated",
        "verified",
    ]
)
"""States, columns and fields that the specs and the API name so."""
IRREGULAR = frozenset(
    [
        "told",
        "said",
        "given",
        "found",
        "kept",
        "heard",
        "made",
        "sent",
        "known",
        "shown",
        "taken",
        "gone",
        "done",
        "left",
    ]
)


def written_modules() -> list[Path]:
    """Without what the compiler of `proto/` wrote."""
    return [path for path in SOURCE.rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


@cache
def defined_names() -> tuple[Counter[str], Counter[str]]:
    """Of variables and parameters, and of public classes: how often each is defined."""
    variables: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    for path in written_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    variables[name] += 1
                case ast.ClassDef(name=name) if not name.startswith("_"):
                    classes[name] += 1
    return variables, classes


def is_participle(name: str) -> bool:
    """``is_known`` and ``was_sent`` are questions, not participles."""
    name = name.strip("_")
    word = name.rpartition("_")[2]
    if name.startswith(("is_", "was_", "has_")) or name in STATES:
        return False
    return word in IRREGULAR or (word.endswith("ed") and word not in NO_PARTICIPLES)
