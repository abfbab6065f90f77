"""The approval lifecycle in plain Python, without a database: what must become of requests, calls and jobs.

It is written from the design, not from the code, and knows nothing of locks, transactions or SQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.approvals.model.approvals import Choice

OPEN = ("RUNNING", "WAITING_FOR_APPROVAL", "PAUSED", "PENDING")


@dataclass(frozen=True)
class Rule:
    """What the policy says of a tool."""

    timeout: timedelta
    remind_before: timedelta
    goes_on: bool
    """A denial does not fail the job."""
    quorum: int = 1
    self_approval: bool = True
    """Whoever shaped the call may approve it."""
    escalate_before: timedelta | None = None
    """Operators are asked too, so long before its deadline."""


RULES = {
    "ship": Rule(timedelta(hours=2), timedelta(minutes=30), goes_on=False),
    "tell": Rule(timedelta(hours=24), timedelta(hours=1), goes_on=True, self_approval=False),
    "sign": Rule(
        timedelta(hours=6), timedelta(minutes=30), goes_on=False, quorum=2, escalate_before=timedelta(hours=4)
    ),
}
POLICIES = """
policies:
  - {name: ship, target: ship, effect: requires_approval, approvers: {owner: true, roles: [approver]}, timeout: 2h,
     remind_before: 30m, on_deny: fail, self_approval: true}
  - {name: tell, target: tell, effect: requires_approval, approvers: {roles: [approver]}, clearance: 3, timeout: 24h,
     remind_before: 1h, on_deny: continue, self_approval: false}
  - {name: sign, target: sign, effect: requires_approval, approvers: {roles: [approver]}, quorum: 2, timeout: 6h,
     remind_before: 30m, escalate_before: 4h, escalate_to: [{roles: [operator]}], on_deny: fail, self_approval: true}
"""

CLEARANCES = {"Ada": 0, "Boss": 5, "Low": 0, "High": 5, "Op": 9, "Mem": 9}
APPROVERS = {"Boss", "Low", "High"}


@dataclass(eq=False)
class Call:
    job: Job
    position: int
    tool: str
    version: str
    status: str = "awaiting"
    grants: dict[UUID, tuple[datetime, bool]] = field(default_factory=dict)
    """By request: until when, and whether it was used."""


@dataclass(eq=False)
class Request:
    session: UUID
    tool: str
    arguments: str
    owner: str
    deadline: datetime
    id: UUID | None = None
    status: str = "pending"
    version: int = 1
    calls: list[Call] = field(default_factory=list)
    reminded: bool = False
    level: int = 0
    delegated: set[str] = field(default_factory=set)
    """Who handed their part on, and decides no more."""
    handed: set[str] = field(default_factory=set)
    """To whom somebody did."""
    votes: dict[tuple[int, str], str] = field(default_factory=dict)
    """By version and person."""
    causes: set[str] = field(default_factory=set)
    """Who shaped one of its calls."""
    editors: set[str] = field(default_factory=set)

    @property
    def escalates_at(self) -> datetime | None:
        before = RULES[self.tool].escalate_before
        return self.deadline - before if before is not None and self.level == 0 else None

    @property
    def due(self) -> datetime:
        reminder = None if self.reminded else self.deadline - RULES[self.tool].remind_before
        return min(each for each in (self.deadline, self.escalates_at, reminder) if each is not None)

    def said_yes(self) -> set[str]:
        """To what it is now."""
        return {
            person for (version, person), said in self.votes.items()
            if version == self.version and said == "approved"
        }  # fmt: skip

    def awaiting(self) -> list[Call]:
        return [call for call in self.calls if call.status == "awaiting"]

    def waiting_jobs(self) -> set[Job]:
        return {call.job for call in self.awaiting()}


@dataclass(eq=False)
class Job:
    id: UUID
    session: UUID
    owner: str
    calls: list[Call] = field(default_factory=list)
    status: str = "PENDING"
    held: bool = False


@dataclass
class Model:
    now: datetime
    jobs: list[Job] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    ended_sessions: set[UUID] = field(default_factory=set)
    shipped: Counter[tuple[UUID, str, str]] = field(default_factory=Counter)

    def open_requests(self, job: Job) -> set[Request]:
        return {r for r in self.requests if r.status == "pending" and job in r.waiting_jobs()}

    # Jobs ------------------------------------------------------------------------------------------------------

    def submit(self, id: UUID, session: UUID, owner: str, script: Iterable[tuple[str, str]]) -> None:
        job = Job(id, session, owner)
        job.calls = [Call(job, position, tool, version) for position, (tool, version) in enumerate(script)]
        self.jobs.append(job)

    def work(self) -> None:
        """A worker takes whatever may run, and runs it until it ends or waits."""
        for job in self.jobs:
            if job.held or job.status not in ("PENDING", "RUNNING"):
                continue
            asked = job.calls if job.status == "PENDING" else [c for c in job.calls if self._outgrown(c)]
            causes = self._causes(job)
            for call in asked:
                call.status = "awaiting" if self._can_approve(call.tool, causes) else "rejected"
                if call.status == "awaiting":
                    self._ask(job, call, causes)
            if any(call.status == "awaiting" for call in asked):
                job.status = "WAITING_FOR_APPROVAL"
                continue
            for call in job.calls:
                if call.status == "approved":
                    (id,) = [id for id, (until, used) in call.grants.items() if until > self.now and not used]
                    call.grants[id] = (call.grants[id][0], True)
                    call.status = "completed"
                    self.shipped[job.id, call.tool, call.version] += 1
            job.status = "COMPLETED"

    def _outgrown(self, call: Call) -> bool:
        return call.status == "approved" and all(until <= self.now for until, _ in call.grants.values())

    def _causes(self, job: Job) -> set[str]:
        """Whoever submitted it, and whoever edited a call that it waited for."""
        its = [r for r in self.requests if any(call.job is job for call in r.calls)]
        return {job.owner, *(person for request in its for person in request.editors)}

    def _can_approve(self, tool: str, causes: set[str]) -> bool:
        """Whether anybody is left who may approve it, where whoever shaped it may not."""
        return RULES[tool].self_approval or any(CLEARANCES[each] >= 3 for each in APPROVERS - causes)

    def _ask(self, job: Job, call: Call, causes: set[str]) -> None:
        for request in self.requests:
            same = (request.session, request.tool, request.arguments) == (job.session, call.tool, call.version)
            if same and request.status == "pending" and self._can_approve(call.tool, request.causes | causes):
                request.causes |= causes
                request.version += 1
                request.calls.append(call)
                return
        deadline = self.now + RULES[call.tool].timeout
        made = Request(job.session, call.tool, call.version, job.owner, deadline, calls=[call], causes={*causes})
        self.requests.append(made)

    def hold(self, job: Job) -> str:
        if job.status not in OPEN:
            return "job_finished"
        changed, job.held = not job.held, True
        if job.status == "RUNNING":
            job.status = "PAUSED"
        return "changed" if changed else "unchanged"

    def resume(self, job: Job) -> str:
        if job.status not in OPEN:
            return "job_finished"
        changed, job.held = job.held, False
        if job.status == "PAUSED":
            job.status = "RUNNING"
        return "changed" if changed else "unchanged"

    def cancel(self, job: Job) -> str:
        if job.status in ("COMPLETED", "FAILED"):
            return "job_finished"
        if job.status == "CANCELLED":
            return "unchanged"
        self._end([job], "CANCELLED")
        return "changed"

    def terminate(self, session: UUID) -> None:
        self.ended_sessions.add(session)
        self._end([j for j in self.jobs if j.session == session and j.status in OPEN], "CANCELLED")

    def _end(self, jobs: list[Job], status: str) -> None:
        """Nothing of them is asked for any more, and nothing that was approved may be sent."""
        theirs = {request for job in jobs for request in self.open_requests(job)}
        for job in jobs:
            job.status, job.held = status, False
            for call in job.calls:
                if call.status in ("awaiting", "approved"):
                    call.status = "rejected"
        for request in theirs:
            if not request.awaiting():
                request.status = "cancelled"

    # Decisions -------------------------------------------------------------------------------------------------

    def is_asked(self, request: Request, person: str) -> bool:
        if person in APPROVERS or person in request.handed:
            return True
        if request.tool == "ship" and person == request.owner:
            return True
        return request.level > 0 and person == "Op"

    def refusal(self, request: Request, person: str, choice: Choice) -> str | None:
        if person == "Mem" and person not in request.handed:
            return "not_found"
        if person in request.delegated:
            return "delegated_away"
        if not self.is_asked(request, person):
            return "not_an_approver"
        if request.tool == "tell" and CLEARANCES[person] < 3:
            return "clearance_too_low"
        if request.tool == "tell" and choice is Choice.APPROVED and person in request.causes:
            return "self_approval"
        return None

    def able(self, request: Request) -> set[str]:
        return {each for each in CLEARANCES if self.refusal(request, each, Choice.APPROVED) is None}

    def decide(
        self, request: Request, person: str, choice: Choice, *, stale: bool = False, edited: str | None = None
    ) -> str:
        """``edited`` is what the call is to be instead; `?` where that is nothing that the tool takes."""
        refused = self.refusal(request, person, choice)
        if refused is not None:
            return refused
        if request.status != "pending":
            same = request.status == choice and edited in (None, request.arguments)
            return "DUPLICATE" if same else "approval_conflict"
        if stale:
            return "approval_changed"
        if edited == "?":
            return "edit_invalid"
        if choice is Choice.DENIED:
            request.votes[request.version, person] = "denied"
            self._turn_down(request, "denied")
            return "OK"
        if edited is not None and edited != request.arguments:
            asked_by_policy = person in APPROVERS or (request.tool == "ship" and person == request.owner)
            if not asked_by_policy:
                # A level or a part lets them say yes to this call, not to one that the policy asks others about.
                return "not_an_approver"
            rule = RULES[request.tool]
            if (rule.quorum > 1 or not rule.self_approval) and self._waits(request.session, request.tool, edited):
                return "edit_duplicates"
            if not rule.self_approval and not self.able(request) - {person}:
                return "edit_leaves_nobody"
            request.arguments = edited
            request.version += 1
            request.causes.add(person)
            request.editors.add(person)
            if not rule.self_approval:
                # Whoever edits it shapes it: others decide.
                for call in request.awaiting():
                    call.version = edited
                return "OK"
        elif person in request.said_yes() and len(request.said_yes()) < RULES[request.tool].quorum:
            return "DUPLICATE"
        request.votes[request.version, person] = "approved"
        for call in request.awaiting():
            call.version = request.arguments
        if len(request.said_yes()) >= RULES[request.tool].quorum:
            self._close(request, "approved")
        return "OK"

    def _waits(self, session: UUID, tool: str, arguments: str) -> bool:
        same = (session, tool, arguments)
        return any(r.status == "pending" and (r.session, r.tool, r.arguments) == same for r in self.requests)

    def delegate(self, request: Request, person: str, to: str) -> str:
        if person == "Mem" and person not in request.handed:
            return "not_found"
        if request.status != "pending":
            return "approval_conflict"
        refused = self.refusal(request, person, Choice.APPROVED)
        if refused is not None:
            return refused
        if person in request.said_yes():
            return "already_voted"
        if to == person:
            return "delegate_is_self"
        if to in request.delegated:
            return "delegation_cycle"
        if request.tool == "tell" and CLEARANCES[to] < 3:
            return "delegate_clearance"
        if request.tool == "tell" and to in request.causes:
            return "delegate_self_approval"
        if len(self.able(request) - {person} | {to}) < RULES[request.tool].quorum:
            return "quorum_impossible"
        request.delegated.add(person)
        request.handed.add(to)
        return "delegated"

    def _close(self, request: Request, status: str) -> None:
        """Its calls are settled, and every job for which it was the last one goes on."""
        jobs, request.status = request.waiting_jobs(), status
        for call in request.awaiting():
            call.status = "approved" if status == "approved" else "rejected"
            if status == "approved" and request.id is not None:
                call.grants[request.id] = (self.now + RULES[request.tool].timeout, False)
        for job in jobs:
            if not self.open_requests(job):
                job.status = "PAUSED" if job.held else "RUNNING"

    def _turn_down(self, request: Request, status: str) -> None:
        if RULES[request.tool].goes_on:
            self._close(request, status)
        else:
            jobs, request.status = request.waiting_jobs(), status
            self._end(list(jobs), "FAILED")

    # Time ------------------------------------------------------------------------------------------------------

    def tick(self, rank: Callable[[Request], int]) -> None:
        """What is due is done, the oldest first; ``rank`` says which of several that are due at once came first."""
        due = [r for r in self.requests if r.status == "pending" and r.due <= self.now]
        for request in sorted(due, key=lambda r: (r.due, rank(r))):
            if request.status != "pending":
                continue
            if request.deadline <= self.now:
                self._turn_down(request, "expired")
            elif request.escalates_at is not None and request.escalates_at <= self.now:
                request.level += 1
            else:
                request.reminded = True
