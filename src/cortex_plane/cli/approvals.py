"""`cortex approval` and `standing`: requests, decisions by id or by token, and standing approvals."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDetails,
    ApprovalKind,
    ApprovalStatus,
    Choice,
    DecisionReceipt,
    DelegationDraft,
    EffectAnswer,
    StandingDraft,
    shaped_by,
)
from cortex_plane.approvals.rules.deciders import in_words
from cortex_plane.cli.inputs import member_id
from cortex_plane.cli.output import COLOURS, AsJson, Limit, harmless, said, short, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.jobs.model.effects import MAX_REPEATS, Verdict
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import to_json
from cortex_plane.policies.model.policies import ONE_HUMAN, quorum_said

if TYPE_CHECKING:
    from cortex_plane.client import Client


ApprovalId = Annotated[UUID | None, typer.Argument(show_default=False)]
Token = Annotated[
    str | None,
    typer.Option(
        help="Instead of an id and a key: the token of a message, which decides what that message showed."
        " `-` reads it from standard input, so that no shell remembers it."
    ),
]


def require_id(approval_id: UUID | None) -> UUID:
    if approval_id is None:
        raise InvalidInput("Which one?", hint="Give the id of the approval, or `--token` with a token.")
    return approval_id


def decide_by_token(choice: Choice, token: str, reason: str | None, *others: Any) -> DecisionReceipt:
    """A token says which request and which version it decides, so none of the ``others`` may be given."""
    if any(each not in (None, False) for each in others):
        raise InvalidInput(
            "A token decides its own request, as its message showed it.",
            hint="Give `--token` with `--reason` at most; decide by id to name a version or to edit.",
        )
    given = (sys.stdin.readline() if token == "-" else token).strip()  # noqa: S105
    if not given:
        raise InvalidInput("There is no token.", hint="Copy it whole from the message.")
    return run(lambda plane: plane.approvals.decide_by_token(given, choice, reason=reason), without_key=True)


standing_app = typer.Typer(
    no_args_is_help=True, help="Standing approvals: a yes to more than one call, with bounds, until revoked."
)

_SPAN = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# The options of `cortex approval approve`.
StandingCalls = Annotated[
    int | None, typer.Option("--standing-calls", help="Say yes to so many more calls of this tool, too.")
]
StandingFor = Annotated[
    str | None, typer.Option("--standing-for", help="So long, as 90s, 30m, 2h or 1d; a day if left out.")
]
StandingSame = Annotated[
    bool, typer.Option("--standing-same-arguments", help="Only to calls with exactly these arguments.")
]
StandingWhen = Annotated[
    str | None,
    typer.Option("--standing-when", help="Only while this CEL condition holds: 'args.amount < 100'."),
]


def standing_draft(calls: int | None, span: str | None, same: bool, when: str | None) -> StandingDraft | None:
    """None where none of the options was given."""
    if calls is None and span is None and not same and when is None:
        return None
    return StandingDraft(
        same_arguments=same, calls=calls, seconds=_seconds(span) if span is not None else None, condition=when
    )


def _seconds(span: str) -> int:
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise InvalidInput(
            f"{span[:40]!r} is not a span of time.", hint="A number and a unit: 90s, 30m, 2h or 1d."
        )
    return int(found[1]) * _UNITS[found[2]]


@standing_app.command("list")
def list_standing(
    session: Annotated[UUID | None, typer.Option(help="Only those of this session.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also what is revoked, over or used up.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Standing approvals that may still cover something, newest first."""
    found = run(
        lambda plane: collect(plane.standing_approvals.list(limit, session_id=session, active=not every))
    )
    columns = [
        "id", "tool_name", "agent", "granted_by", "used_calls", "max_calls", "expires_at", "condition", "usable",
        "why_not",
    ]  # fmt: skip
    show_many(found, columns, as_json)


@standing_app.command("show")
def show_standing(standing_id: UUID, as_json: AsJson = False) -> None:
    """What it covers, who gave it, how often it was used, and whether it still holds."""
    show_one(run(lambda plane: plane.standing_approvals.get(standing_id)), as_json)


@standing_app.command("revoke")
def revoke_standing(
    standing_id: UUID,
    reason: Annotated[str | None, typer.Option(help="For the audit trail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take it back: from now on each call is asked about again. What was sent was sent."""
    standing = run(lambda plane: plane.standing_approvals.revoke(standing_id, reason=reason))
    if as_json:
        show_one(standing, True)
        return
    times = f"{standing.used_calls} call{'s' if standing.used_calls != 1 else ''}"
    said(f"{harmless(standing.tool_name)} is asked about again; it covered {times}")


approval_app = typer.Typer(
    no_args_is_help=True, help="Approvals: what agents may not do without a person's yes."
)

WATCH_SECONDS = 1.0
WIDTH = 12
RISKS = {"low": "green", "medium": "yellow", "high": "red", "critical": "bold red"}


@approval_app.command("list")
def list_approvals(
    status: Annotated[ApprovalStatus | None, typer.Option(help="Pending ones if left out.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Whatever their status.")] = False,
    job: Annotated[UUID | None, typer.Option()] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Requests, newest first."""
    wanted = None if every else status or ApprovalStatus.PENDING
    found = run(lambda plane: collect(plane.approvals.list(limit, status=wanted, job_id=job)))
    show_many(
        found,
        ["id", "status", "risk", "tool_name", "agent", "deadline", "may_decide", "resolved_by_name"],
        as_json,
    )


@approval_app.command("show")
def show_approval(approval_id: UUID, as_json: AsJson = False) -> None:
    """The whole card: what would be sent, why it needs a person, who may decide, until when."""
    details = run(lambda plane: plane.approvals.get(approval_id))
    if as_json:
        sys.stdout.write(to_json(details).decode() + "\n")
        return
    for line in card_lines(details):
        tell(line)


@approval_app.command("approve")
def approve_call(
    approval_id: ApprovalId = None,
    reason: Annotated[str | None, typer.Option(help="For the audit trail.")] = None,
    edit: Annotated[
        str | None, typer.Option(help="A JSON object: approve the call with these arguments.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(help="The version you saw; where left out, a terminal shows the card and asks."),
    ] = None,
    standing_calls: StandingCalls = None,
    standing_for: StandingFor = None,
    standing_same: StandingSame = False,
    standing_when: StandingWhen = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Let the call be sent, exactly as the card shows it, or as you edit it; with --standing-… also some that follow."""
    if token is not None:
        others = (approval_id, edit, version, standing_calls, standing_for, standing_same, standing_when)
        _show_decision(decide_by_token(Choice.APPROVED, token, reason, *others), as_json)
        return
    id = require_id(approval_id)
    arguments = _object(edit) if edit is not None else None
    standing = standing_draft(standing_calls, standing_for, standing_same, standing_when)

    async def decide(plane: Client) -> DecisionReceipt:
        details = await plane.approvals.get(id)
        if version is None and not as_json:
            await asyncio.to_thread(_confirm, details)
        seen = _seen(details, version)
        return await plane.approvals.approve(seen, reason=reason, arguments=arguments, standing=standing)

    _show_decision(run(decide), as_json)


@approval_app.command("deny")
def deny_call(
    approval_id: ApprovalId = None,
    reason: Annotated[str | None, typer.Option(help="The agent and the audit trail are told.")] = None,
    version: Annotated[
        int | None, typer.Option(help="The version you saw; the current one if left out.")
    ] = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Refuse the call. Its job fails, or goes another way where the policy says so."""
    if token is not None:
        _show_decision(decide_by_token(Choice.DENIED, token, reason, approval_id, version), as_json)
        return
    id = require_id(approval_id)

    async def decide(plane: Client) -> DecisionReceipt:
        seen = _seen(await plane.approvals.get(id), version)
        return await plane.approvals.deny(seen, reason=reason)

    _show_decision(run(decide), as_json)


@approval_app.command("delegate")
def delegate_approval(
    approval_id: UUID,
    to: Annotated[str, typer.Option(help="Who decides instead of you: an id or the whole name.")],
    reason: Annotated[str | None, typer.Option(help="For them, and for the audit trail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hand your part in a request to somebody with the clearance for it. You decide no more."""

    async def hand_on(plane: Client) -> Approval:
        draft = DelegationDraft(to=await member_id(plane, to), reason=reason)
        return await plane.approvals.delegate(approval_id, draft)

    approval = run(hand_on)
    if as_json:
        show_one(approval, True)
    else:
        said(f"{harmless(approval.tool_name)} waits for {harmless(to)} instead of you")


@approval_app.command("answer")
def answer_uncertain(
    approval_id: UUID,
    verdict: Verdict,
    result: Annotated[
        str | None, typer.Option(help="JSON: what the agent is told that the call returned.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="For the audit trail and the agent.")] = None,
    as_json: AsJson = False,
) -> None:
    """About an uncertain effect: it happened, it did not (and is sent again), or give the job up."""
    given = EffectAnswer(verdict=verdict, result=_json(result) if result is not None else None, note=note)
    _show_decision(run(lambda plane: plane.approvals.answer(approval_id, given)), as_json)


@approval_app.command("watch")
def watch_approvals(
    as_json: AsJson = False,
    once: Annotated[bool, typer.Option(help="Show what waits now, then end.")] = False,
) -> None:
    """Tell of every request that waits for somebody, as it comes. Ctrl-C ends it."""

    async def follow(plane: Client) -> None:
        told: dict[UUID, int] = {}
        while True:
            pending = await collect(plane.approvals.list(200, status=ApprovalStatus.PENDING))
            for approval in reversed(pending):
                if told.get(approval.id) != approval.version:
                    told[approval.id] = approval.version
                    _show_arrival(approval, as_json)
            if once:
                return
            await asyncio.sleep(WATCH_SECONDS)

    run(follow)


def _show_arrival(approval: Approval, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(approval).decode() + "\n")
        sys.stdout.flush()
        return
    line = _head(approval)
    line.append(f" {short(approval.arguments, 120)}")
    tell(line)
    if approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        tell(f"   cortex approval answer {approval.id} happened|did_not_happen|fail")
    else:
        seen = f"--version {approval.version}"
        tell(f"   cortex approval approve {approval.id} {seen}   or   deny {approval.id} {seen} --reason …")


# The card --------------------------------------------------------------------------------------------------------


def card_lines(details: ApprovalDetails) -> list[str | Text]:
    """In the order in which somebody needs it to decide."""
    approval = details.approval
    lines: list[str | Text] = [_head(approval), ""]
    lines += _block("arguments", approval.arguments)
    if approval.original_arguments is not None:
        lines += _block("the agent sent", approval.original_arguments)
    lines.append(_fact("agent", f"{approval.agent_name} ({approval.agent}), job {approval.job_id}"))
    if approval.asked_for:
        lines.append(_fact("was asked", short(approval.asked_for, 300)))
    if approval.agent_says:
        lines.append(_fact("agent says", short(approval.agent_says, 300)))
    if approval.action:
        lines.append(_fact("job says", short(approval.action, 300)))
    if approval.details:
        lines += _block("job says besides", approval.details)
    if approval.question:
        lines.append(_fact("question", approval.question))
    lines.append(_fact("policy", f"{approval.rule} (version {approval.policy_version}, {approval.template})"))
    who = ", ".join(details.approval.deciders) or "nobody"
    clearance = f"; clearance {approval.required_clearance}" if approval.required_clearance else ""
    lines.append(_fact("may decide", who + clearance))
    if approval.repeats:
        told = f"{approval.repeats} of at most {MAX_REPEATS} times, after an answer that it did not happen"
        lines.append(_fact("sent again", told))
    if approval.caused or approval.programs:
        lines.append(_fact("shaped by", shaped_by(approval)))
    lines += _people(details)
    if approval.deadline is not None:
        lines.append(_fact("deadline", _deadline(approval, details.now)))
    if approval.resolved_at is not None:
        by = f" by {approval.resolved_by_name}" if approval.resolved_by_name else ""
        why = f": {approval.resolution_reason}" if approval.resolution_reason else ""
        lines.append(_fact("outcome", f"{approval.status}{by}{why}"))
    elif approval.why_not:
        lines.append(_fact("you", approval.why_not))
    for event in details.events:
        by = f" · {event.actor}" if event.actor else ""
        by += f" · {event.times} times" if event.times > 1 else ""
        via = f" · {event.channel}" if event.channel else ""
        lines.append(_fact(event.created_at.strftime("%H:%M:%S"), f"{event.event_type}{by}{via}"))
    return lines


def _people(details: ApprovalDetails) -> list[str | Text]:
    """Who voted, through whose hands a part went, and how far it escalated."""
    approval = details.approval
    lines: list[str | Text] = []
    if approval.quorum.votes > 1 or approval.quorum.roles:
        lines.append(_fact("votes", f"{approval.votes_for} so far; it needs {quorum_said(approval.quorum)}"))
        for vote in details.votes:
            void = "" if vote.version == approval.version else f", to version {vote.version}: void"
            why = f": {vote.reason}" if vote.reason else ""
            lines.append(_fact("", f"{vote.member} · {vote.decision} · {vote.channel}{void}{why}"))
            if vote.counts_with:
                lines.append(
                    _fact("", f"adds nothing: one human with {vote.counts_with}, because {ONE_HUMAN}")
                )
    for hop in details.delegations:
        why = f": {hop.reason}" if hop.reason else ""
        lines.append(_fact("handed on", f"{hop.from_member} → {hop.to_member}{why}"))
    if approval.escalations:
        level = f"level {approval.escalation_level} of {approval.escalations}"
        at = approval.escalate_at
        lines.append(_fact("escalation", level + (f", goes up at {at:%Y-%m-%d %H:%M:%S} UTC" if at else "")))
    for sent in details.deliveries:
        error = f": {sent.last_error}" if sent.last_error else ""
        lines.append(
            _fact(sent.channel_type, f"{sent.member} · {sent.status} · {sent.attempts} tries{error}")
        )
    return lines


def _head(approval: Approval) -> Text:
    line = Text(approval.risk.upper(), style=RISKS.get(approval.risk, ""))
    times = f" ×{approval.invocations}" if approval.invocations > 1 else ""
    line.append(f"  {harmless(approval.tool_name)}{times}", style="bold")
    line.append(f"  {approval.id}", style="dim")
    line.append(f"  {approval.status.value}", style=COLOURS.get(approval.status.value, ""))
    line.append(f"  v{approval.version}", style="dim")
    return line


def _block(name: str, value: Any) -> list[str | Text]:
    # ASCII, so that nothing in it can disturb a terminal or hide.
    shown = json.dumps(value, indent=2)
    return [Text(name, style="dim"), *(f"  {line}" for line in shown.splitlines()), ""]


def _fact(name: str, value: str) -> Text:
    """Further lines of what somebody wrote are set in, so that they cannot pass for facts of ours."""
    line = Text(f"{name:<{WIDTH}}", style="dim")
    line.append(harmless(value).replace("\n", "\n" + " " * WIDTH), style="default")
    return line


def _deadline(approval: Approval, now: datetime) -> str:
    if approval.deadline is None:
        return "none"
    at = approval.deadline.strftime("%Y-%m-%d %H:%M:%S UTC")
    then = "the job fails" if approval.on_deny == "fail" else "the agent is told"
    left = int((approval.deadline - now).total_seconds())
    if approval.resolved_at is not None or left <= 0:
        return at
    return f"{at}, in {in_words(left - left % _grain(left))}; then {then}"


def _grain(seconds: int) -> int:
    """Nobody wants the seconds of a day."""
    return 3600 if seconds >= 7200 else 60 if seconds >= 120 else 1


def _confirm(details: ApprovalDetails) -> None:
    """Whoever names no version and sits before a terminal sees what they approve, and says yes to that."""
    if details.approval.may_decide and sys.stdin.isatty() and sys.stdout.isatty():
        for line in card_lines(details):
            tell(line)
        typer.confirm("Approve exactly this?", abort=True)


def _seen(details: ApprovalDetails, version: int | None) -> Approval:
    approval = details.approval
    if version is not None and version != approval.version:
        return replace(approval, version=version)
    return approval


def _show_decision(receipt: DecisionReceipt, as_json: bool) -> None:
    if as_json:
        show_one(receipt, True)
        return
    approval = receipt.approval
    again = " (it was before)" if receipt.result == "DUPLICATE" else ""
    others = ": others are still to decide" if approval.status is ApprovalStatus.PENDING else ""
    said(f"{approval.tool_name} is {approval.status}{again}{others}; job {approval.job_id}")


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise InvalidInput(f"This is not JSON: {error}.", hint="See --help.") from None


def _object(text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise InvalidInput(
            "--edit takes a JSON object.", hint='For example: --edit \'{"version": "2.4.1"}\'.'
        )
    return value
