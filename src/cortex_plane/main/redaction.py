"""Secrets never reach a log: what leaves no mail leaves no log line, by the same names and patterns."""

from __future__ import annotations

from cortex_plane.kernel.redaction import REDACTED, redact

__all__ = ["HIDDEN", "redact"]

HIDDEN = REDACTED
