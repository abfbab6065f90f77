"""Text for people and for comparison: plain words, spans of time, hidden characters made visible, and secrets redacted."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from cortex_plane.kernel.globs import Glob

_HIDDEN = ("Mn", "Me", "Cf", "Cc")
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters and symbols that show nothing."""
_CONTROLS = {number: None for number in (*range(32), 127) if chr(number) not in "\t\n\r\v\f"}
_TWINS = str.maketrans("аеорсухіјѕһԁԛԝвкмнтгпαεικνορτυχγβηωıɑɡ", "aeopcyxijshdqwbkmhtrnaeikvoptuxybnwiag")
"""Letters of other alphabets that look like ours."""


def normal(text: str, *, case_sensitive: bool = False) -> str:
    """In one form, without marks and hidden characters, with single spaces."""
    plain = text.translate(_CONTROLS) if text.isascii() else _uncovered(text)
    return " ".join((plain if case_sensitive else _folded(plain)).split())


def _uncovered(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text)
    hidden = {
        ord(each): None
        for each in set(apart)
        if (unicodedata.category(each) in _HIDDEN and each not in "\t\n\r\v\f") or each in _BLANK
    }
    return unicodedata.normalize("NFKC", apart.translate(hidden))


def _folded(text: str) -> str:
    """To fold the case may bring marks back, so those go again."""
    lower = text.casefold()
    return lower if lower.isascii() else _uncovered(lower).casefold()


@lru_cache(maxsize=4096)
def normal_word(text: str) -> str:
    return normal(text)


def lookalike(plain: str) -> str:
    """A normal text with the letters that only look like ours as ours."""
    return plain if plain.isascii() else plain.translate(_TWINS)


def span(seconds: float, units: int = 2) -> str:
    """The largest units of a duration."""
    remaining = max(0, int(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if remaining >= size:
            parts.append(f"{remaining // size} {unit}")
            remaining %= size
        elif parts:
            break
    return " ".join(parts[:units]) or "0 s"


def short_span(seconds: float) -> str:
    """One unit, and tenths of a second where it is short."""
    return f"{seconds:.1f} s" if 0 <= seconds < 10 else span(seconds)


def in_words(seconds: int) -> str:
    """A duration in its largest whole unit, written out."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        # Days only from two on: people say 24 hours.
        if seconds % size == 0 and seconds >= size * (2 if unit == "day" else 1):
            count = seconds // size
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{seconds} second{'s' if seconds != 1 else ''}"


def stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


SUSPECT = re.compile(r"[^\x20-\x7e\n\u00a1-\u00ac\u00ae-\u02ff]")
"""Everything that might be hidden; the rest is plain and is never looked at twice."""
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks by their category, and yet nothing is drawn: fillers, joiners, variation selectors, blank Braille.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")


@lru_cache(maxsize=4096)
def is_hidden(character: str) -> bool:
    """Whether a reader would not see it, or would see the text around it changed."""
    if character in "\n ":
        return False
    category = unicodedata.category(character)
    if category in _UNSEEN_CATEGORIES or character in _BLANKS:
        return True
    point = ord(character)
    return 0xFE00 <= point <= 0xFE0F or 0xE0100 <= point <= 0xE01EF or category == "Zs"


_JOINERS = frozenset("\u200c\u200d")


def unseen_in(text: str) -> str | None:
    """The first character of a name or a question that nobody sees, or that turns text around. Joiners between letters that
    are not ASCII belong to scripts and emoji, and variation selectors to signs: those are fine."""
    for match in SUSPECT.finditer(text):
        character, at = match.group(), match.start()
        if unicodedata.category(character) not in ("Cf", "Co", "Cn", "Zl", "Zp") and character not in _BLANKS:
            continue
        around = text[max(0, at - 1) : at], text[at + 1 : at + 2]
        if character not in _JOINERS or not all(side and not side.isascii() for side in around):
            return character
    return None


def hidden_in(value: Any) -> bool:
    """Whether a JSON value has a hidden character anywhere, keys included."""
    return any(is_hidden(match.group()) for match in SUSPECT.finditer(json.dumps(value, ensure_ascii=False)))


def escaped_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that means exactly the same, with every hidden character as its escape. It can be edited and read back."""
    separators = (",", ":") if indent is None else (",", ": ")
    return _escaped(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=indent, separators=separators))


def readable_json(value: Any) -> str:
    """The same, indented, of values that are stored, for people who only read it. The indenting encoder of `json` is not compiled."""
    return _escaped(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode())


def _escaped(text: str) -> str:
    return SUSPECT.sub(lambda m: json.dumps(m.group())[1:-1] if is_hidden(m.group()) else m.group(), text)


def marked(text: str) -> str:
    """Plain text with every hidden character as a mark: ⟨U+202E⟩."""
    return SUSPECT.sub(lambda m: f"⟨U+{ord(m.group()):04X}⟩" if is_hidden(m.group()) else m.group(), text)


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


@lru_cache(maxsize=64)
def _names(more: tuple[str, ...]) -> _Names:
    return _Names(more)
