"""`cortex approval` and `standing`: requests, decisions by id or by token, and standing approvals."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.text import Text
from typer import Argument, Option

from cortex_plane.approvals import routes
from cortex_plane.approvals.model import approvals as model
from cortex_plane.approvals.model.questions import ASK_PERSON
from cortex_plane.cli import terminal
from cortex_plane.cli.plane import harmless, run
from cortex_plane.cli.terminal import AsJson, Limit, add_command, say, show_record, show_table
from cortex_plane.jobs.model.effects import MAX_REPEATS, Verdict
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.text import in_words
from cortex_plane.policies.model.policies import ONE_HUMAN

if TYPE_CHECKING:
    from cortex_plane.client import Client


ApprovalId = Annotated[UUID | None, Argument(show_default=False)]
Token = Annotated[
    str | None,
    Option(
        help="Instead of an id and a key: the token of a message, which decides what that message showed."
        " `-` reads it from standard input, so that no shell remembers it."
    ),
]


def require_id(approval_id: UUID | None) -> UUID:
    if approval_id is None:
        raise InvalidInput("Which one?", hint="Give the id of the approval, or `--token` with a token.")
    return approval_id


def decide_by_token(
    choice: model.Choice, token: str, reason: str | None, as_json: bool, *others: Any, answer: Any = None
) -> None:
    """A token names the request and the version that it decides, so none of the ``others`` may be set."""
    if any(option not in (None, False) for option in others):
        raise InvalidInput(
            "A token decides its own request, as its message showed it.",
            hint="Give `--token` with `--reason` at most; decide by id to name a version or to edit.",
        )
    secret = terminal.read_secret(token)
    if not secret:
        raise InvalidInput("There is no token.", hint="Copy it whole from the message.")
    show_record(
        lambda plane: plane.approvals.decide_by_token(secret, choice, reason=reason, answer=answer),
        as_json,
        _show_decision,
        without_key=True,
    )


standing_app = typer.Typer(
    no_args_is_help=True, help="Standing approvals: a yes to more than one call, with bounds, until revoked."
)

_SPAN = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# The options of `cortex approval approve`.
StandingCalls = Annotated[
    int | None, Option("--standing-calls", help="Say yes to so many more calls of this tool, too.")
]
StandingFor = Annotated[str | None, Option("--standing-for", help="So long, as 90s, 30m, 2h or 1d; a day if left out.")]
StandingSame = Annotated[bool, Option("--standing-same-arguments", help="Only to calls with exactly these arguments.")]
StandingWhen = Annotated[
    str | None, Option("--standing-when", help="Only while this CEL condition holds: 'args.amount < 100'.")
]


def standing_draft(calls: int | None, span: str | None, same: bool, when: str | None) -> model.StandingDraft | None:
    """None where none of the options is set."""
    if calls is None and span is None and not same and when is None:
        return None
    seconds = None if span is None else _seconds(span)
    return model.StandingDraft(same_arguments=same, calls=calls, seconds=seconds, condition=when)


def _seconds(span: str) -> int:
    parts = _SPAN.fullmatch(span.strip())
    if parts is None:
        raise InvalidInput(f"{span[:40]!r} is not a span of time.", hint="A number and a unit: 90s, 30m, 2h or 1d.")
    return int(parts[1]) * _UNITS[parts[2]]


@standing_app.command("list")
def list_standing(
    session: Annotated[UUID | None, Option(help="Only those of this session.")] = None,
    every: Annotated[bool, Option("--all", help="Also what is revoked, over or used up.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Standing approvals that may still cover something, newest first."""
    show_table(
        routes.LIST_STANDING_APPROVALS,
        lambda plane: plane.standing_approvals.list(limit, session_id=session, active=not every),
        as_json,
    )


add_command(
    standing_app,
    "show",
    routes.GET_STANDING_APPROVAL,
    "What it covers, who gave it, how often it was used, and whether it still holds.",
)


@standing_app.command("revoke")
def revoke_standing(
    standing_id: UUID,
    reason: Annotated[str | None, Option(help="For the audit trail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take it back: from now on each call is asked about again. What was sent was sent."""

    def show(standing: model.StandingApproval) -> None:
        calls = terminal.count_text(standing.used_calls, "call")
        say(f"{harmless(standing.tool_name)} is asked about again; it covered {calls}")

    show_record(lambda plane: plane.standing_approvals.revoke(standing_id, reason=reason), as_json, show)


approval_app = typer.Typer(no_args_is_help=True, help="Approvals: what agents may not do without a person's yes.")

WATCH_SECONDS = 1.0
WIDTH = 12
_MARKS = {"added": "+", "removed": "-"}
RISKS = {"low": "green", "medium": "yellow", "high": "red", "critical": "bold red"}


@approval_app.command("list")
def list_approvals(
    status: Annotated[model.ApprovalStatus | None, Option(help="Pending ones if left out.")] = None,
    every: Annotated[bool, Option("--all", help="Whatever their status.")] = False,
    job: UUID | None = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Requests, newest first."""
    only = None if every else status or model.ApprovalStatus.PENDING
    show_table(routes.LIST_APPROVALS, lambda plane: plane.approvals.list(limit, status=only, job_id=job), as_json)


@approval_app.command("show")
def show_approval(approval_id: UUID, as_json: AsJson = False) -> None:
    """The whole card: what would be sent, why it needs a person, who may decide, until when."""
    show_record(lambda plane: plane.approvals.get(approval_id), as_json, _print_card)


@approval_app.command("approve")
def approve_call(
    approval_id: ApprovalId = None,
    reason: Annotated[str | None, Option(help="For the audit trail.")] = None,
    edit: Annotated[str | None, Option(help="A JSON object: approve the call with these arguments.")] = None,
    version: Annotated[
        int | None, Option(help="The version you saw; where left out, a terminal shows the card and asks.")
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
        decide_by_token(model.Choice.APPROVED, token, reason, as_json, *others)
        return
    id = require_id(approval_id)
    arguments = None if edit is None else terminal.parse_json(edit, "This is not JSON", hint="See --help.")
    if not isinstance(arguments, dict | None):
        raise InvalidInput("--edit takes a JSON object.", hint='For example: --edit \'{"version": "2.4.1"}\'.')
    standing = standing_draft(standing_calls, standing_for, standing_same, standing_when)

    async def decide(plane: Client) -> model.DecisionReceipt:
        details = await plane.approvals.get(id)
        if version is None and not as_json:
            await asyncio.to_thread(_confirm, details)
        approval = _at_version(details.approval, version)
        return await plane.approvals.approve(approval, reason=reason, arguments=arguments, standing=standing)

    show_record(decide, as_json, _show_decision)


@approval_app.command("deny")
def deny_call(
    approval_id: ApprovalId = None,
    reason: Annotated[str | None, Option(help="The agent and the audit trail are told.")] = None,
    version: Annotated[int | None, Option(help="The version you saw; the current one if left out.")] = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Refuse the call. Its job fails, or goes another way where the policy says so."""
    if token is not None:
        decide_by_token(model.Choice.DENIED, token, reason, as_json, approval_id, version)
        return
    id = require_id(approval_id)

    async def decide(plane: Client) -> model.DecisionReceipt:
        approval = _at_version((await plane.approvals.get(id)).approval, version)
        return await plane.approvals.deny(approval, reason=reason)

    show_record(decide, as_json, _show_decision)


@approval_app.command("delegate")
def delegate_approval(
    approval_id: UUID,
    to: Annotated[str, Option(help="Who decides instead of you: an id or the whole name.")],
    reason: Annotated[str | None, Option(help="For them, and for the audit trail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hand your part in a request to somebody with the clearance for it. You decide no more."""

    async def hand_on(plane: Client) -> model.Approval:
        draft = model.DelegationDraft(to=await terminal.member_id(plane, to), reason=reason)
        return await plane.approvals.delegate(approval_id, draft)

    def show(approval: model.Approval) -> None:
        say(f"{harmless(approval.tool_name)} waits for {harmless(to)} instead of you")

    show_record(hand_on, as_json, show)


@approval_app.command("answer")
def answer_request(
    approval_id: ApprovalId = None,
    words: Annotated[
        str | None, Argument(help="The answer. Of an uncertain effect: happened, did_not_happen or fail.")
    ] = None,
    value: Annotated[
        str | None, Option(help="The answer as JSON, where the question has a form: '{\"amount\": 40}'.")
    ] = None,
    result: Annotated[
        str | None, Option(help="JSON, of an effect that happened: what the agent is told that the call returned.")
    ] = None,
    note: Annotated[str | None, Option(help="For the audit trail; of an uncertain effect also for the agent.")] = None,
    version: Annotated[int | None, Option(help="The version you saw; the current one if left out.")] = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question of an agent, or answer in the place of any call: nothing is sent, and the agent goes on with the answer.
    Of an uncertain effect: it happened, it did not (and is sent again), or give the job up."""
    content = words if value is None else terminal.parse_json(value, "--value is not JSON", hint="See --help.")
    if token is not None:
        if value is None:
            raise InvalidInput(
                "What is the answer?", hint="With `--token` give it as JSON: `--value '\"Use order 43\"'`."
            )
        others = (approval_id, words, result, version)
        decide_by_token(model.Choice.RESPONDED, token, note, as_json, *others, answer=content)
        return
    id = require_id(approval_id)
    if content is None or (words is not None and value is not None):
        raise InvalidInput("What is the answer?", hint="Give it after the id, or as JSON with `--value`.")

    async def answer(plane: Client) -> model.DecisionReceipt:
        seen = (await plane.approvals.get(id)).approval
        if seen.kind is model.ApprovalKind.UNCERTAIN_EFFECT:
            return await plane.approvals.answer(id, _effect_answer(content, result, note))
        if result is not None:
            raise InvalidInput("`--result` is for uncertain effects.", hint="Give the answer itself.")
        if value is None and words in set(Verdict) and seen.tool_name != ASK_PERSON:
            raise Conflict(
                "This is a request to approve a call, not a question whether one happened.",
                code="not_a_question",
                hint=f"Approve or deny it; to give the agent this very word, use `--value '\"{words}\"'`.",
            )
        return await plane.approvals.respond(_at_version(seen, version), content, reason=note)

    show_record(answer, as_json, _show_decision)


def _effect_answer(content: Any, result: str | None, note: str | None) -> model.EffectAnswer:
    if content not in set(Verdict):
        choices = ", ".join(Verdict)
        raise InvalidInput(f"Nobody knows whether this call happened: answer one of {choices}.", hint="See --help.")
    value = None if result is None else terminal.parse_json(result, "--result is not JSON", hint="See --help.")
    return model.EffectAnswer(verdict=Verdict(content), result=value, note=note)


@approval_app.command("watch")
def watch_approvals(
    as_json: AsJson = False, once: Annotated[bool, Option(help="Show what waits now, then end.")] = False
) -> None:
    """Tell of every request that waits for somebody, as it comes. Ctrl-C ends it."""

    async def follow(plane: Client) -> None:
        versions: dict[UUID, int] = {}
        while True:
            requests = plane.approvals.list(200, status=model.ApprovalStatus.PENDING)
            for approval in reversed([request async for request in requests]):
                if versions.get(approval.id) != approval.version:
                    versions[approval.id] = approval.version
                    _show_arrival(approval, as_json)
            if once:
                return
            await asyncio.sleep(WATCH_SECONDS)

    run(follow)


def _show_arrival(approval: model.Approval, as_json: bool) -> None:
    if as_json:
        terminal.print_json(approval)
        sys.stdout.flush()
        return
    terminal.print_line(_head(approval).append(f" {terminal.short(approval.arguments, 120)}"))
    if approval.kind is model.ApprovalKind.UNCERTAIN_EFFECT:
        terminal.print_line(f"   cortex approval answer {approval.id} happened|did_not_happen|fail")
    elif approval.tool_name == ASK_PERSON:
        terminal.print_line(f"   cortex approval answer {approval.id} …   or   deny {approval.id}")
    else:
        words = f"{approval.id} --version {approval.version}"
        terminal.print_line(f"   cortex approval approve {words}   or   deny {words} --reason …")


def _print_card(details: model.ApprovalDetails) -> None:
    for line in _card_lines(details):
        terminal.print_line(line)


def _card_lines(details: model.ApprovalDetails) -> Iterator[str | Text]:
    """In the order in which an approver needs it."""
    approval = details.approval
    yield _head(approval)
    yield ""
    if approval.kind is model.ApprovalKind.CHANGE:
        yield from _change_lines(approval)
    else:
        yield from _block("arguments", approval.arguments)
    if approval.original_arguments is not None:
        yield from _block("the agent sent", approval.original_arguments)
    if approval.job_id is not None:
        yield _fact("agent", f"{approval.agent_name} ({approval.agent}), job {approval.job_id}")
    else:
        yield _fact("proposed by", approval.agent_name)
    quotes = (("was asked", approval.asked_for), ("agent says", approval.agent_says), ("job says", approval.action))
    yield from (_fact(name, terminal.short(text, 300)) for name, text in quotes if text)
    if approval.details:
        yield from _block("job says besides", approval.details)
    if approval.question:
        yield _fact("question", approval.question)
    version = "" if approval.names_version else f"version {approval.policy_version}, "
    yield _fact("policy", f"{approval.rule} ({version}{approval.template})")
    if approval.rule_reason:
        yield _fact("reason", approval.rule_reason)
    for entry in approval.gate_answers:
        cut = f" ({entry.cut} characters)" if entry.cut else ""
        yield _fact("answered", f"{entry.gate}: {entry.question} → {terminal.short(entry.answer, 1000)}{cut}")
    clearance = f"; clearance {approval.required_clearance}" if approval.required_clearance else ""
    yield _fact("may decide", (", ".join(approval.deciders) or "nobody") + clearance)
    if approval.repeats:
        times = f"{approval.repeats} of at most {MAX_REPEATS} times"
        yield _fact("sent again", f"{times}, after an answer that it did not happen")
    if approval.caused or approval.programs:
        yield _fact("shaped by", model.shaped_by(approval))
    yield from _people_lines(details)
    if approval.deadline is not None:
        yield _fact("deadline", _deadline(approval, details.now))
    if approval.resolved_at is not None:
        by = f" by {approval.resolved_by_name}" if approval.resolved_by_name else ""
        yield _fact("outcome", f"{approval.status}{by}{_reason(approval.resolution_reason)}")
        if approval.answer is not None:
            yield from _block("answer", approval.answer)
    elif approval.why_not:
        yield _fact("you", approval.why_not)
    for event in details.events:
        repeats = f"{event.times} times" if event.times > 1 else None
        parts = (event.event_type, event.actor, repeats, event.channel)
        yield _fact(f"{event.created_at:%H:%M:%S}", " · ".join(part for part in parts if part))


def _change_lines(approval: model.Approval) -> Iterator[str | Text]:
    """How a change differs from what holds, and what it would have changed about the calls of the last week."""
    change = approval.arguments
    diff, effect = change["diff"], change["effect"]
    yield Text(f"instead of version {harmless(str(change['instead_of'] or '–'))}", style="dim")
    for part in diff["changes"]:
        name = part.get("id") or part["name"]
        where = part.get("kind") or (f"team {part['team']}" if part["team"] else "org")
        yield f"  {_MARKS.get(part['change'], '~')} {harmless(where)} {harmless(name)}"
        for field in part["fields"]:
            before, after = (terminal.short(field[side], 80) for side in ("before", "after"))
            yield f"      {harmless(field['field'])}: {before} → {after}"
    yield f"  {diff['added']} added, {diff['removed']} removed, {diff['changed']} changed"
    yield ""
    counts = effect.get("totals") or effect
    yield Text("of the calls of the last week", style="dim")
    for group in effect["groups"]:
        before, after = (f"{group[side]['verdict']} by {group[side]['rule']}" for side in ("before", "after"))
        yield f"  {group['calls']} × {harmless(group['tool'])} of {harmless(group['agent'])}: {harmless(before)} → {harmless(after)}"
    yield (
        f"  {counts['looked_at']} looked at, {counts['changed']} would change:"
        f" {counts['stricter']} stricter, {counts['looser']} looser"
    )
    yield from (f"  not looked at: {text}" for text in effect.get("left_out", ()))
    yield ""


def _reason(text: str | None) -> str:
    return f": {text}" if text else ""


def _people_lines(details: model.ApprovalDetails) -> Iterator[Text]:
    """Votes, delegations, escalation and deliveries."""
    approval = details.approval
    if approval.quorum.votes > 1 or approval.quorum.roles:
        yield _fact("votes", f"{approval.votes_for} so far; it needs {approval.quorum.in_words()}")
        for vote in details.votes:
            void = "" if vote.version == approval.version else f", to version {vote.version}: void"
            yield _fact("", f"{vote.member} · {vote.decision} · {vote.channel}{void}{_reason(vote.reason)}")
            if vote.counts_with:
                yield _fact("", f"adds nothing: one human with {vote.counts_with}, because {ONE_HUMAN}")
    for hop in details.delegations:
        yield _fact("handed on", f"{hop.from_member} → {hop.to_member}{_reason(hop.reason)}")
    if approval.escalations:
        at = approval.escalate_at
        later = f", goes up at {at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
        yield _fact("escalation", f"level {approval.escalation_level} of {approval.escalations}{later}")
    for delivery in details.deliveries:
        tries = f"{delivery.attempts} tries{_reason(delivery.last_error)}"
        yield _fact(delivery.channel_type, f"{delivery.member} · {delivery.status} · {tries}")


def _head(approval: model.Approval) -> Text:
    line = Text(approval.risk.upper(), style=RISKS.get(approval.risk, ""))
    times = f" ×{approval.invocations}" if approval.invocations > 1 else ""
    line.append(f"  {harmless(approval.tool_name)}{times}", style="bold")
    line.append(f"  {approval.id}", style="dim")
    line.append(f"  {approval.status.value}", style=terminal.COLOURS.get(approval.status.value, ""))
    line.append(f"  v{approval.version}", style="dim")
    return line


def _block(name: str, value: Any) -> list[str | Text]:
    # ASCII, so that nothing in it can disturb a terminal or hide.
    return [Text(name, style="dim"), *(f"  {line}" for line in json.dumps(value, indent=2).splitlines()), ""]


def _fact(name: str, value: str) -> Text:
    """Further lines of a text are indented, so that they cannot pass for facts."""
    text = harmless(value).replace("\n", "\n" + " " * WIDTH)
    return Text(f"{name:<{WIDTH}}", style="dim").append(text, style="default")


def _deadline(approval: model.Approval, now: datetime) -> str:
    if approval.deadline is None:
        return "none"
    at = approval.deadline.strftime("%Y-%m-%d %H:%M:%S UTC")
    seconds = int((approval.deadline - now).total_seconds())
    if approval.resolved_at is not None or seconds <= 0:
        return at
    unit = 3600 if seconds >= 7200 else 60 if seconds >= 120 else 1
    return f"{at}, in {in_words(seconds - seconds % unit)}. {model.if_nobody_decides(approval)}"


def _confirm(details: model.ApprovalDetails) -> None:
    """On a terminal, an approver who names no version sees the card and confirms it."""
    if details.approval.may_decide and sys.stdin.isatty() and sys.stdout.isatty():
        _print_card(details)
        typer.confirm("Approve exactly this?", abort=True)


def _at_version(approval: model.Approval, version: int | None) -> model.Approval:
    return approval if version is None else replace(approval, version=version)


def _show_decision(receipt: model.DecisionReceipt) -> None:
    approval = receipt.approval
    again = " (it was before)" if receipt.result == "DUPLICATE" else ""
    others = ": others are still to decide" if approval.status is model.ApprovalStatus.PENDING else ""
    where = f"job {approval.job_id}" if approval.job_id is not None else approval.target
    status = "answered" if approval.status is model.ApprovalStatus.RESPONDED else approval.status.value
    say(f"{approval.tool_name} is {status}{again}{others}; {where}")
