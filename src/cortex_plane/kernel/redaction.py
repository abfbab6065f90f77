"""Redaction rules: which values of arguments and results are hidden."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from cortex_plane.kernel.globs import Glob

REDACTED = "[redacted]"

DEFAULT: tuple[str, ...] = (
    "*password*", "*passwd*", "*passphrase*", "pass", "*_pass", "pwd", "*secret*", "*token", "tokens", "*token_value*",
    "*token-value*", "*tokenvalue*", "*api_key*", "*apikey*", "*api-key*", "*access_key*", "*accesskey*", "*access-key*",
    "*authorization*", "auth", "*credential*", "*private_key*", "*private-key*", "*privatekey*", "cookie", "set-cookie",
)  # fmt: skip
"""Names of values, whatever their case. An org adds its own."""

_LABELS = frozenset({"name", "key", "header", "field"})
_VALUES = frozenset({"value", "values"})
"""Where a name and its value stand beside each other: `{name: Authorization, value: …}`."""

_REMEMBERED, _LONGEST_NAME = 2000, 100

# Patterns -------------------------------------------------------------------------------------------------------------
# They read whatever agents write: every repetition that could be begun in many places has a limit.

_QUOTE = r"""\\{0,3}["']"""
_NAMES = r"(?:pass(?:word|wd|phrase)|secret|token(?:[_-]?value)?|(?:api|access|private)[_-]?key)"
_SHORT = r"(?<![a-z0-9])(?:pass|pwd|auth)|(?<![a-z0-9_-])tokens(?=\W{1,8}[^\s\d])"
"""Words that are also parts of others, and counts."""
_VALUE = (
    r'(?:\\"(?:\\{3}"|(?!\\")[^\r\n])*'  # in quotes that are escaped, as in JSON within JSON
    r"|\\'(?:\\{3}'|(?!\\')[^\r\n])*"
    r'|"(?:\\.|[^"\\\r\n])*"?'
    r"|'(?:\\.|[^'\\\r\n])*'?"
    r"|\[[^\]\r\n]*\]?|\{[^}\r\n]*\}?"
    r"|[^\s,;&\"']+)"
)
_TO_THE_END = r"""(?:digest\s[^\r\n]+|(?:\\(?!["'])|[^\r\n"'\\])+)"""
"""The rest of a header: of a line, or of what is quoted."""


def _rule(hints: str, pattern: str, put: str = REDACTED) -> tuple[tuple[str, ...], re.Pattern[str], str]:
    return tuple(hints.split("|")), re.compile(pattern, re.IGNORECASE), put


_KEPT = rf"\1{REDACTED}"
# A rule is tried where one of its words stands in the text: most texts have none, and cost next to nothing.
_RULES = (
    _rule("private key", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)"
          r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"),
    _rule("cortex_", r"cortex_(?:key|login|enrol|session|verify|apr_\d{1,9})_[A-Za-z0-9_-]{8,}"),
    _rule("whsec_", r"whsec_[A-Za-z0-9+/=]{8,}"),
    _rule("sig=|nonce=", r"(\b(?:sig|nonce)=)[A-Za-z0-9_-]{8,}", _KEPT),
    _rule("authorization|cookie", rf"((?:authorization(?:{_QUOTE})?\s*[=:]|\b(?:set-)?cookie(?:{_QUOTE})?\s*:)\s*(?:{_QUOTE})?)"
          rf"(?=\S){_TO_THE_END}", _KEPT),
    _rule("bearer", r"(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}", _KEPT),
    # Its capitals or digits tell it from an English word.
    _rule("basic", r"(\bbasic\s+)(?-i:(?=[A-Za-z+/_-]*[A-Z0-9=]))[A-Za-z0-9+/_-]{8,}={0,2}", _KEPT),
    _rule("://", r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),
    _rule("-u|--user", r"""((?<![\w-])(?:-u\s*|--(?:proxy-)?user[=\s]\s*)["']?)(?!\d+:\d+\b|\w+://)[^\s:"']{1,100}:[^\s"']+""", _KEPT),
    _rule("--", rf"((?<![\w-])--(?:[\w-]{{0,40}}[-_])?(?:{_NAMES}|pass|pwd|auth)\s+)(?!-){_VALUE}", _KEPT),
    _rule("value", rf"((?:name|key|header|field)(?:{_QUOTE})?\s*[=:]\s*(?:{_QUOTE})?[\w-]{{0,40}}(?:{_NAMES}|authorization|cookie)"
          rf"[\w-]{{0,40}}(?:{_QUOTE})?\s*,\s*(?:{_QUOTE})?values?(?:{_QUOTE})?\s*[=:]\s*){_VALUE}", _KEPT),
    _rule("pass|pwd|secret|token|key|auth", rf"((?:{_NAMES}|{_SHORT})(?:{_QUOTE})?\s*[=:]\s*){_VALUE}", _KEPT),
)  # fmt: skip


_WORDS = ("cortex_", "whsec_", "sig=", "nonce=", "auth", "cookie", "bearer", "basic", "://", "-u", "--", "pass", "pwd",
          "secret", "token", "key")  # fmt: skip
"""A text without any of these is not looked at any further: no rule fits it."""


def redact(value: Any, names: Sequence[str] = ()) -> Any:
    """The same JSON without its secrets: at any depth, those that stand under a name that a glob matches, of the plane's or
    of ``names``, and those that a text tells. Whoever wants to know whether something was hidden compares."""
    return _names(tuple(names)).redacted(value)


def redact_text(text: str) -> str:
    """What is recognised in a text: the plane's own secrets, headers, passwords in URLs and on command lines, keys, and what
    stands behind a name and `=` or `:`."""
    lower = text.lower()
    for word in _WORDS:
        if word in lower:
            break
    else:
        return text
    for hints, pattern, put in _RULES:
        if any(hint in lower for hint in hints):
            text = pattern.sub(put, text)
    return text


class _Names:
    """The names of secrets, with what was already asked about them: the same few come again and again."""

    def __init__(self, more: tuple[str, ...]) -> None:
        self._globs = tuple(Glob.of(name.lower()) for name in (*DEFAULT, *more))
        self._known: dict[str, bool] = {}

    def redacted(self, value: Any) -> Any:
        match value:
            case str():
                return redact_text(value)
            case dict():
                is_secret = self._tells_a_secret(value)
                return {
                    name: REDACTED
                    if self._have(str(name)) or (is_secret and str(name).lower() in _VALUES)
                    else self.redacted(inner)
                    for name, inner in value.items()
                }
            case list() | tuple():
                return [self.redacted(inner) for inner in value]
        return value

    def _tells_a_secret(self, value: dict[Any, Any]) -> bool:
        if not any(isinstance(name, str) and name.lower() in _VALUES for name in value):
            return False
        return any(
            isinstance(label, str) and str(name).lower() in _LABELS and self._have(label)
            for name, label in value.items()
        )

    def _have(self, name: str) -> bool:
        answer = self._known.get(name)
        if answer is None:
            lower = name.lower()
            answer = any(glob.matches(lower) for glob in self._globs)
            # Names are whatever somebody writes: their number and their length have an end.
            if len(self._known) < _REMEMBERED and len(name) <= _LONGEST_NAME:
                self._known[name] = answer
        return answer


@functools.lru_cache(maxsize=64)
def _names(more: tuple[str, ...]) -> _Names:
    return _Names(more)
