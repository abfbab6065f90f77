"""No code of functions stands in two files: the same lines, or lines of the same shape with other names and values."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.names import SOURCE, written_modules

MOST_LINES = 15
MOST_PLACES = 8
"""A run that stands in more files is how the language or a library is used."""
_VALUES = {tokenize.STRING: "string", tokenize.NUMBER: "number"}


def shapes(source: str) -> list[str]:
    """The lines of all functions, in which every name is the same name, and every value the same value."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            lines[token.start[0]].append(token.string if keyword.iskeyword(token.string) else "name")
        elif token.type in _VALUES or token.type == tokenize.OP:
            lines[token.start[0]].append(_VALUES.get(token.type, token.string))
    return [" ".join(words) for number, words in sorted(lines.items()) if number in inside and _says_something(words)]


def _says_something(words: list[str]) -> bool:
    return words[0] not in ("import", "from", "@") and words != ["string"] and not set(words) <= set("()[]{},:")


def runs(lines: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(lines[start:] for start in range(length)), strict=False)


@pytest.mark.proves("D.700")
def test_no_code_stands_in_two_files() -> None:
    places: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in written_modules():
        for run in runs(shapes(path.read_text()), MOST_LINES + 1):
            places[run].add(path.relative_to(SOURCE).as_posix())
    assert sorted({tuple(sorted(files)) for files in places.values() if 1 < len(files) <= MOST_PLACES}) == []


def test_renamed_copies_have_one_shape() -> None:
    one = Path(__file__).read_text()
    other = one.replace("lines", "rows").replace('"name"', '"word"')
    assert shapes(one) == shapes(other) != shapes(one.replace(" not in ", " in "))
    assert len([*runs(shapes(one), MOST_LINES + 1)]) > 1
