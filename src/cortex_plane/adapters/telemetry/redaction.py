"""Secrets never reach a log: whatever looks like one is replaced, wherever it stands."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "[redacted]"

_PATTERNS = (
    re.compile(r"cortex_(?:key|login|session|apr_\d+)_[A-Za-z0-9_-]{8,}"),
    re.compile(r"whsec_[A-Za-z0-9+/=]{8,}"),
    re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),
    re.compile(r"""(?i)(?:password|secret|token|api_key)["']?\s*[=:]\s*["']?[^\s,;&"']+"""),
)
_NAMES = frozenset({"authorization", "cookie", "set-cookie", "password", "secret", "token", "api_key"})


def redact(value: Any) -> Any:
    match value:
        case str():
            for pattern in _PATTERNS:
                value = pattern.sub(HIDDEN, value)
            return value
        case dict():
            return {k: HIDDEN if str(k).lower() in _NAMES else redact(v) for k, v in value.items()}
        case list() | tuple():
            return [redact(v) for v in value]
    return value
