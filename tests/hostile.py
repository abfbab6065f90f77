"""Text that tries to be more than text, wherever it is shown."""

from __future__ import annotations

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}\u202egnp.exe\u202c\u2066iso\u2069"
    "zero\u200bwidth\ufeff \x1b[2J\x1b]0;title\x07\x1b[31mred\u009b31m [bold]markup[/bold]\b\r\nstatus  approved\ttab"
    "\u2028line '\"` ;-- \U000e0041tag"
)
INVISIBLE = frozenset(c for c in HOSTILE if not c.isprintable() and c != "\n")
"""What must not reach a terminal as it is."""
