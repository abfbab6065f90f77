"""Times as people say them. The exact time stands beside each, so nothing is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from markupsafe import Markup


def span(seconds: float, units: int = 2) -> str:
    """The largest units of a duration."""
    left = max(0, int(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:units]) or "0 s"


def short_span(seconds: float) -> str:
    """One unit, and tenths of a second where it is short."""
    return f"{seconds:.1f} s" if 0 <= seconds < 10 else span(seconds)


def stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(at: datetime, now: datetime) -> Markup:
    """How long ago, with the exact time for whoever points at it; kept current by the page's script."""
    passed = (now - at).total_seconds()
    return _time(at, "ago", "just now" if passed < 5 else f"{span(passed, 1)} ago")


def until(at: datetime, now: datetime) -> Markup:
    """A countdown."""
    left = (at - now).total_seconds()
    return _time(at, "countdown", span(left) if left > 0 else "over")


def _time(at: datetime, kind: str, text: str) -> Markup:
    machine = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}" data-{}>{}</time>').format(machine, stamp(at), kind, text)


def is_soon(at: datetime, now: datetime) -> bool:
    return at - now < timedelta(minutes=5)
