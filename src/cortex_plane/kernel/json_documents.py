"""JSON, read as strictly as YAML is: every value with its line, no key twice, one value and nothing after it."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.documents import Bounds, Building, Faults, Mapping, Node, Sequence, check_size
from cortex_plane.kernel.errors import InvalidInput

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
