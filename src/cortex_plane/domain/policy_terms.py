"""Terms: what an approval must fulfil, put together from what each row says and what it leaves open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cortex_plane.domain.authorization import PolicyVerdict
from cortex_plane.domain.policies import (
    MAX_TIMEOUT_SECONDS,
    OWNER_DECIDES,
    TEMPLATES,
    OnDeny,
    PolicyRow,
    Template,
    Terms,
)

Origins = dict[str, str]
_ORDER = {template: place for place, template in enumerate(TEMPLATES)}
_OF_TEMPLATES = ("timeout_seconds", "reminder_seconds", "approvers", "self_approval")
_TERMS = (
    "required_clearance",
    "timeout_seconds",
    "reminder_seconds",
    "approvers",
    "on_deny",
    "self_approval",
)


def resolve_terms(row: PolicyRow | None, platform: PolicyRow | None) -> tuple[Terms, Origins]:
    """A null inherits: row, its template, the platform's match and its template, the default."""
    said: dict[str, Any] = {"template": OWNER_DECIDES.template}
    origins: Origins = dict.fromkeys(("template", *_TERMS), "default")
    for name in _TERMS:
        said[name] = getattr(OWNER_DECIDES, name)
    if platform is not None and platform is not row:
        _say(said, origins, platform, "platform")
    if row is not None:
        _say(said, origins, row, "platform" if row is platform else "row")
    return _fitting(Terms(**said)), origins


def _say(said: dict[str, Any], origins: Origins, row: PolicyRow, who: str) -> None:
    if row.template is not None:
        template = TEMPLATES[row.template]
        said["template"], origins["template"] = row.template, f"{who} {row.name}"
        for name in _OF_TEMPLATES:
            said[name], origins[name] = (
                getattr(template, name),
                f"template {row.template} of {who} {row.name}",
            )
    for name in _TERMS:
        value = getattr(row, name)
        if value is not None:
            said[name], origins[name] = value, f"{who} {row.name}"


def own_timeout(row: PolicyRow) -> int | None:
    """The time that a row speaks of, itself or by its template."""
    if row.timeout_seconds is not None or row.template is None:
        return row.timeout_seconds
    return TEMPLATES[row.template].timeout_seconds


def limit_terms(
    terms: Terms, origins: Origins, limit: PolicyRow, platform: PolicyRow | None, rule: str
) -> tuple[Terms, Origins]:
    """Clearance and time of the limit hold. A final row that asks for people also says who they are."""
    changes = _narrower(terms, limit)
    if limit.final and limit.effect is PolicyVerdict.REQUIRES_APPROVAL:
        outer, _ = resolve_terms(limit, platform)
        changes["approvers"] = outer.approvers
        changes["self_approval"] = terms.self_approval and outer.self_approval
        changes["template"] = _stricter_template(terms.template, outer.template)
    return _changed(terms, origins, changes, f"limit {rule}")


def tighten_terms(terms: Terms, origins: Origins, asked: PolicyRow, rule: str) -> tuple[Terms, Origins]:
    """Who decides is not the request's to say where the rest already said it."""
    changes = _narrower(terms, asked)
    if asked.template is not None:
        changes["template"] = _stricter_template(terms.template, asked.template)
        changes["self_approval"] = terms.self_approval and TEMPLATES[asked.template].self_approval
        changes["reminder_seconds"] = terms.reminder_seconds or TEMPLATES[asked.template].reminder_seconds
    if asked.self_approval is False:
        changes["self_approval"] = False
    if asked.reminder_seconds:
        changes["reminder_seconds"] = asked.reminder_seconds
    if asked.on_deny is OnDeny.FAIL:
        changes["on_deny"] = asked.on_deny
    return _changed(terms, origins, changes, f"request {rule}")


def _narrower(terms: Terms, row: PolicyRow) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if row.required_clearance is not None:
        changes["required_clearance"] = max(terms.required_clearance, row.required_clearance)
    timeout = own_timeout(row)
    if timeout is not None:
        changes["timeout_seconds"] = min(terms.timeout_seconds, timeout)
    return changes


def _stricter_template(one: Template, other: Template) -> Template:
    return one if _ORDER[one] >= _ORDER[other] else other


def _changed(terms: Terms, origins: Origins, changes: dict[str, Any], who: str) -> tuple[Terms, Origins]:
    changed = {name: value for name, value in changes.items() if getattr(terms, name) != value}
    if not changed:
        return terms, origins
    return _fitting(replace(terms, **changed)), origins | dict.fromkeys(changed, who)


def _fitting(terms: Terms) -> Terms:
    """Within the cap; a reminder that would come before the request comes at half of its time."""
    timeout = min(terms.timeout_seconds, MAX_TIMEOUT_SECONDS)
    reminder = terms.reminder_seconds or None
    if reminder is not None and reminder >= timeout:
        reminder = timeout // 2 or None
    if timeout == terms.timeout_seconds and reminder == terms.reminder_seconds:
        return terms
    return replace(terms, timeout_seconds=timeout, reminder_seconds=reminder)
