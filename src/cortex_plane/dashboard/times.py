"""Times as people say them. The exact time stands beside each, so nothing is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from cortex_plane.kernel.text import span, stamp


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
