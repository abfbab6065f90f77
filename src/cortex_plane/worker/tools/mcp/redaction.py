"""What a server was given in confidence, taken out of whatever it says."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

MIN_SECRET = 4
REDACTED = "[redacted]"


class Redaction:
    """Secrets as they are, and as servers commonly write them: quoted for a URL, in JSON, in base64."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            raw = secret.encode("utf-8", "surrogateescape")
            forms |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
            forms |= {
                base64.b64encode(raw).decode().rstrip("="),
                base64.urlsafe_b64encode(raw).decode().rstrip("="),
            }
        longest_first = sorted((form for form in forms if len(form) >= MIN_SECRET), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def value(self, value: Any) -> Any:
        """JSON, with keys and texts redacted, in its depth."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(each) for each in value]
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(each) for key, each in value.items()}
        return value
