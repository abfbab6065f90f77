"""Files in TOML that people write for one program, read strictly: a fault is an error that names its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cortex_plane.kernel.errors import InvalidInput

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class TomlKind:
    """One kind of file, in the words of its errors."""

    noun: str
    """Such as `The gateway's file`."""
    code: str
    page: str
    """That describes it."""

    def read_text(self, path: Path) -> str:
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._invalid(f"{self.noun} {path} cannot be read: {error}.") from None

    def parse(self, text: str, name: str, model: type[M]) -> M:
        """Raises `InvalidInput` with the line of the first fault."""
        try:
            return model.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise self._invalid(f"{name} is not TOML: {error}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            raise self.fault(text, name, tuple(map(str, first["loc"])), first["msg"]) from None

    def fault(self, text: str, name: str, place: tuple[str, ...], message: str) -> InvalidInput:
        where = ".".join(place)
        return self._invalid(f"{name}, line {line_of(text, place)}: `{where}`: {message}.")

    def _invalid(self, message: str) -> InvalidInput:
        return InvalidInput(message, code=self.code, hint=f"Correct the file; {self.page} describes it.")


_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def line_of(text: str, place: tuple[str, ...]) -> int:
    """The line of the key, or of the innermost table around it that stands in the file; 1 where none does."""
    best, line = 0, 1
    for number, key in _keys(text):
        common = 0
        while common < min(len(key), len(place)) and key[common] == place[common]:
            common += 1
        if common == len(key) and common > best:
            best, line = common, number
    return line


def _keys(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.fullmatch(line):
            table = _parts(match[1])
            yield number, table
        elif match := _KEY.match(line):
            yield number, (*table, *_parts(match[1]))


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
