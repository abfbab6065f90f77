"""Terms of an approval: who decides, by when, by which quorum, and the words that describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cortex_plane.kernel.canonical import canonical
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.model.places import fewer_channels
from cortex_plane.policies.model.policies import Approvers, OnDeny, PolicyRow, PolicyVerdict, Quorum, Template, Terms
from cortex_plane.tenancy.model.orgs import Role

Origins = dict[str, str]
ADMINS = Approvers(roles=(Role.ADMIN,))
"""The last level of every chain that the engine builds: an org always has admins."""

_ORDER = {template: place for place, template in enumerate(policy_model.TEMPLATES)}
_OF_TEMPLATES = ("timeout_seconds", "reminder_seconds", "escalation_seconds", "approvers", "self_approval", "standing")
_TERMS = (*_OF_TEMPLATES, "required_clearance", "on_deny", "quorum", "channels")


def resolve_terms(
    row: PolicyRow | None, platform: PolicyRow | None, above: Sequence[PolicyRow] = (), who: str = "row"
) -> tuple[Terms, Origins]:
    """A null inherits: row, its template, the platform's match and its template, the default. ``above`` are the matches of
    the levels over the row: it escalates to them where it does not say otherwise."""
    values: dict[str, Any] = {name: getattr(policy_model.OWNER_DECIDES, name) for name in ("template", *_TERMS)}
    values["escalate_to"] = None
    origins: Origins = dict.fromkeys(Terms.__slots__, "default")
    if platform is not None and platform is not row:
        _say(values, origins, platform, "platform")
    if row is not None:
        _say(values, origins, row, "platform" if row is platform else who)
    steps = values.pop("escalate_to")
    if values["escalation_seconds"]:
        values["escalations"] = _escalations(values["approvers"], steps, above, values["template"])
        if steps is None:
            origins["escalations"] = "the levels above"
    return _fitting(Terms(**values)), origins


def _say(values: dict[str, Any], origins: Origins, row: PolicyRow, who: str) -> None:
    source = f"{who} {row.name}"
    if row.template is not None:
        template = policy_model.TEMPLATES[row.template]
        values["template"], origins["template"] = row.template, source
        values["escalate_to"] = None
        for name in _OF_TEMPLATES:
            values[name], origins[name] = getattr(template, name), f"template {row.template} of {source}"
    for name in _TERMS:
        if (value := getattr(row, name)) is not None:
            values[name], origins[name] = value, source
    if row.escalate_to is not None:
        values["escalate_to"], origins["escalations"] = row.escalate_to, source


def own_term(row: PolicyRow, name: str) -> Any:
    """A term that the row says, itself or by its template; None where it says nothing."""
    value = getattr(row, name)
    return getattr(policy_model.TEMPLATES[row.template], name) if value is None and row.template is not None else value


def _escalations(
    approvers: Approvers, steps: Sequence[Approvers] | None, above: Sequence[PolicyRow], template: Template
) -> tuple[Approvers, ...]:
    """As the row says; else up the levels, and to the admins in the end."""
    if steps is not None:
        return adding(approvers, steps)
    named_above = (own_term(row, "approvers") for row in above if row.effect is PolicyVerdict.REQUIRES_APPROVAL)
    chain = adding(approvers, [*(each for each in named_above if each is not None), ADMINS])
    return chain[:1] if policy_model.TEMPLATES[template].escalates_once else chain


def adding(approvers: Approvers, steps: Sequence[Approvers]) -> tuple[Approvers, ...]:
    """The steps that ask somebody who was not asked before them."""
    owner, roles, members = approvers.owner, set(approvers.roles), set(approvers.members)
    new_steps = []
    for step in steps:
        if (step.owner and not owner) or not roles.issuperset(step.roles) or not members.issuperset(step.members):
            new_steps.append(step)
        owner = owner or step.owner
        roles.update(step.roles)
        members.update(step.members)
    return tuple(new_steps)


def limit_terms(
    terms: Terms, origins: Origins, limit: PolicyRow, platform: PolicyRow | None, above: Sequence[PolicyRow], rule: str
) -> tuple[Terms, Origins]:
    """Clearance, time, quorum and channels of the limit hold, and its no to standing approvals. A final row that asks for
    people also says who they are, who is asked after them, and that a denial fails the job."""
    changes = _narrower(terms, limit)
    if limit.final and limit.effect is PolicyVerdict.REQUIRES_APPROVAL:
        outer, _ = resolve_terms(limit, platform, above)
        changes["approvers"] = outer.approvers
        changes["escalations"] = outer.escalations
        changes["escalation_seconds"] = outer.escalation_seconds
        changes["self_approval"] = terms.self_approval and outer.self_approval
        changes["template"] = _stricter_template(terms.template, outer.template)
        if limit.on_deny is OnDeny.FAIL:
            changes["on_deny"] = limit.on_deny
    return _changed(terms, origins, changes, f"limit {rule}")


def tighten_terms(
    terms: Terms, origins: Origins, demand: PolicyRow, rule: str, *, by_default: bool
) -> tuple[Terms, Origins]:
    """Who decides is not the request's to say where the rest already said it: there it only chooses among them. Where
    nothing but the default speaks (``by_default``), those whom it names decide instead of the owner."""
    changes = _narrower(terms, demand)
    if demand.template is not None:
        changes["template"] = _stricter_template(terms.template, demand.template)
        changes["self_approval"] = terms.self_approval and policy_model.TEMPLATES[demand.template].self_approval
        changes["reminder_seconds"] = terms.reminder_seconds or policy_model.TEMPLATES[demand.template].reminder_seconds
    if demand.self_approval is False:
        changes["self_approval"] = False
    if demand.reminder_seconds:
        changes["reminder_seconds"] = demand.reminder_seconds
    if demand.on_deny is OnDeny.FAIL:
        changes["on_deny"] = demand.on_deny
    if by_default:
        approvers = Approvers(members=demand.named) if demand.named else terms.approvers
        changes["approvers"] = approvers
        if seconds := own_term(demand, "escalation_seconds"):
            changes["escalation_seconds"] = seconds
            changes["escalations"] = adding(approvers, [ADMINS])
    else:
        if demand.named:
            changes["named"] = demand.named
        if demand.escalation_seconds is not None and terms.escalations:
            changes["escalation_seconds"] = demand.escalation_seconds
    changes |= _of_request(demand)
    return _changed(terms, origins, changes, f"request {rule}")


def requested_terms(demand: PolicyRow, platform: PolicyRow | None, above: Sequence[PolicyRow]) -> tuple[Terms, Origins]:
    """Where a request demands an approval that nothing else asks for: it says by whom."""
    row = replace(demand, approvers=Approvers(members=demand.named)) if demand.named else demand
    terms, origins = resolve_terms(row, platform, above, "request")
    shown_fields = _of_request(demand)
    return replace(terms, **shown_fields), origins | dict.fromkeys(shown_fields, f"request {demand.name}")


def _of_request(demand: PolicyRow) -> dict[str, Any]:
    fields = {"action": demand.action, "details": demand.details}
    return {name: value for name, value in fields.items() if value is not None}


def _narrower(terms: Terms, row: PolicyRow) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if row.required_clearance is not None:
        changes["required_clearance"] = max(terms.required_clearance, row.required_clearance)
    if (timeout := own_term(row, "timeout_seconds")) is not None:
        changes["timeout_seconds"] = min(terms.timeout_seconds, timeout)
    if row.quorum is not None:
        changes["quorum"] = policy_model.stricter_quorum(terms.quorum, row.quorum)
    if own_term(row, "standing") is False:
        changes["standing"] = False
    if row.channels is not None:
        changes["channels"] = fewer_channels(terms.channels, row.channels)
    return changes


def how_strict(terms: Terms) -> tuple[int, ...]:
    """By this the strictest is found, which gives its name to what several rows say together."""
    return _ORDER[terms.template], terms.quorum.votes, terms.required_clearance


def both_terms(terms: Terms, origins: Origins, other: Terms, who: str, *, owner: bool = True) -> tuple[Terms, Origins]:
    """What fulfils both. ``owner``: whether all others let the session's owner decide too."""
    alone = terms.self_approval and other.self_approval
    approvers = _of_both(terms.approvers, other.approvers, owner=owner and alone)
    changes: dict[str, Any] = {
        "template": _stricter_template(terms.template, other.template),
        "required_clearance": max(terms.required_clearance, other.required_clearance),
        "timeout_seconds": min(terms.timeout_seconds, other.timeout_seconds),
        "approvers": approvers,
        "quorum": policy_model.stricter_quorum(terms.quorum, other.quorum),
        "self_approval": alone,
        "standing": terms.standing and other.standing,
        "escalations": adding(approvers, terms.escalations) if terms.escalations == other.escalations else (),
    }
    if other.on_deny is OnDeny.FAIL:
        changes["on_deny"] = other.on_deny
    if other.channels is not None:
        changes["channels"] = fewer_channels(terms.channels, other.channels)
    if other.named is not None:
        members = other.named if terms.named is None else [id for id in terms.named if id in other.named]
        changes["named"] = tuple(members) or terms.named
    return _changed(terms, origins, changes, who)


def _of_both(one: Approvers, other: Approvers, *, owner: bool) -> Approvers:
    """Those whom both name. The owner is whom the agent works for, and gives way to everybody else; where the two have
    nobody in common, it is for the admins."""
    if one == other:
        return one
    owner = owner and one.owner and other.owner
    if not owner and not (one.roles or one.members):
        one = other
    if not owner and not (other.roles or other.members):
        other = one
    common = Approvers(
        owner=owner,
        roles=tuple(role for role in one.roles if role in other.roles),
        members=tuple(id for id in one.members if id in other.members),
    )
    return common if common.owner or common.roles or common.members else ADMINS


def _stricter_template(one: Template, other: Template) -> Template:
    return one if _ORDER[one] >= _ORDER[other] else other


def _changed(terms: Terms, origins: Origins, changes: dict[str, Any], who: str) -> tuple[Terms, Origins]:
    differences = {name: value for name, value in changes.items() if getattr(terms, name) != value}
    if not differences:
        return terms, origins
    return _fitting(replace(terms, **differences)), origins | dict.fromkeys(differences, who)


def _fitting(terms: Terms) -> Terms:
    """Within the cap; what would come before the request comes at half of its time; who never escalates has no levels."""
    timeout = min(terms.timeout_seconds, policy_model.MAX_TIMEOUT_SECONDS)
    reminder = _within(timeout, terms.reminder_seconds)
    escalation = _within(timeout, terms.escalation_seconds) if terms.escalations else None
    levels = terms.escalations if escalation is not None else ()
    return replace(
        terms, timeout_seconds=timeout, reminder_seconds=reminder, escalation_seconds=escalation, escalations=levels
    )


def _within(timeout: int, seconds: int | None) -> int | None:
    if seconds and seconds >= timeout:
        return timeout // 2 or None
    return seconds or None


_NEVER = frozenset({"reminder_seconds", "escalation_seconds"})
MAX_SHOWN = 200


def term_said(name: str, value: Any) -> str:
    """One term, short."""
    match value:
        case None:
            return {"channels": "all", "named": "anybody of them"}.get(name, "never" if name in _NEVER else "none")
        case bool():
            return "yes" if value else "no"
        case Approvers():
            return approvers_said(value)
        case Quorum():
            return value.in_words()
        case tuple() if name == "escalations":
            return ", then ".join(map(approvers_said, value)) or "nobody"
        case tuple():
            return ", ".join(map(str, value)) or "the dashboard alone"
        case Mapping():
            text = canonical(dict(value)).decode()
            return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return str(value)


def approvers_said(approvers: Approvers) -> str:
    parts = ["the session's owner"] if approvers.owner else []
    parts += [f"role {role}" for role in approvers.roles]
    parts += [f"member {id}" for id in approvers.members]
    return ", ".join(parts) or "nobody"
