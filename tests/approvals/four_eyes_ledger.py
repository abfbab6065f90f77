"""Who did what in a play of `test_four_eyes_model.py`, kept apart from the plane's own records, and the rule about what was sent.

A human has several identities. The model maps every credential to the human who holds it, and writes down which human did what
to which job. The plane's own columns about causes, sponsors and votes are not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

VOTES = {"ship": 2, "refund": 1}
"""How many humans the policies want for each tool. Whoever shaped a `refund` is none of them."""


@dataclass(frozen=True, eq=False)
class Credential:
    """A key, or the cookie of a browser session."""

    holder: str
    secret: str
    label: str
    account: UUID | None = None
    """None for a service key."""


@dataclass(frozen=True, eq=False)
class Hook:
    """A webhook and its secret: its holder signs in the name of everybody who is mapped there."""

    holder: str
    id: UUID
    secret: str
    label: str
    names: dict[str, UUID] = field(default_factory=dict)


@dataclass(eq=False)
class Thread:
    """A session, as far as it shapes calls."""

    agent: str
    opener: str | None = None
    """Whoever opened it, where its agent runs elsewhere."""
    wrote: list[str] = field(default_factory=list)
    """Who wrote or brought its messages, in order."""
    context: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Job:
    thread: Thread
    conversation: bool = False
    submitters: set[str] = field(default_factory=set)
    """Also those of the jobs that it was submitted again from."""
    shaped: set[str] = field(default_factory=set)
    """Who submitted it, wrote its agent, gave a reason or an answer that it has read, or edited a call of it."""
    read: set[str] | None = None
    """Whose messages a conversation had when it ran first; None before."""


@dataclass(eq=False)
class Request:
    tool: str
    terms: tuple[Any, ...]
    rules: int
    """How many changes of the rules there had been."""
    jobs: set[UUID] = field(default_factory=set)
    calls: set[UUID] = field(default_factory=set)
    shaped: set[str] = field(default_factory=set)
    yes: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Who said yes to which version."""


@dataclass(eq=False)
class Question:
    """Whether a call happened."""

    call: UUID
    said: dict[UUID, tuple[str, str]] = field(default_factory=dict)
    """By account: the answer, and the human who gave it."""


@dataclass(eq=False)
class Call:
    job: UUID
    tool: str
    shaped: set[str] = field(default_factory=set)
    asker: str | None = None
    """Whoever asked for it, where it runs elsewhere."""
    begun_by: set[str] = field(default_factory=set)
    """Whoever began it there last: where it needs another yes by then, they ask for it."""
    requests: list[UUID] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    """Who shaped it, apart from the rules."""
    cleared: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """Each time that it was answered not to have happened: who said so, and who had shaped the call by then."""
    sends: list[UUID | None] = field(default_factory=list)
    """Each time that it was sent: by which request. None: by a standing approval."""
    granted: set[UUID] = field(default_factory=set)
    standing: set[UUID] = field(default_factory=set)
    permit: tuple[UUID | None, UUID | None] = (None, None)
    """The request, or else the request of the standing approval, by which it was sent last."""


class Ledger:
    """What the model knows."""

    def __init__(self) -> None:
        self.threads: dict[UUID, Thread] = {}
        self.jobs: dict[UUID, Job] = {}
        self.requests: dict[UUID, Request] = {}
        self.questions: dict[UUID, Question] = {}
        self.calls: dict[UUID, Call] = {}
        self.agents: dict[tuple[str, int], str] = {}
        """Who wrote which version."""
        self.signals: dict[str, str] = {}
        """Who sent which payload."""
        self.rules: list[str] = []
        """Who changed the policies or what is confirmed of a tool, in order."""
        self.standing: dict[UUID, str] = {}
        """Who said yes to more calls with which request."""

    # What humans did --------------------------------------------------------------------------------------------

    def add_job(self, id: UUID, session: UUID, agent: str, version: int, *who: str, conversation: bool = False) -> None:
        thread = self.threads.setdefault(session, Thread(agent))
        known = self.jobs.setdefault(id, Job(thread, conversation))
        known.submitters |= {*who}
        known.shaped |= {*who, self.agents[agent, version]}

    def run(self) -> None:
        """Conversations read what is there."""
        for job in self.jobs.values():
            if job.read is None:
                job.read = set(job.thread.wrote)

    def edited(self, id: UUID, human: str, version: int) -> None:
        request = self.requests[id]
        request.shaped.add(human)
        request.yes[version].add(human)
        for job in request.jobs:
            self.jobs[job].shaped.add(human)

    def gave_reason(self, id: UUID, human: str) -> None:
        if self.requests[id].tool == "refund":  # whoever denies `ship` ends its job
            for job in self.requests[id].jobs:
                self.jobs[job].shaped.add(human)

    def answered(self, id: UUID, account: UUID, answer: str, human: str, *, ended: bool) -> None:
        question = self.questions[id]
        question.said[account] = (answer, human)
        if ended:
            call = self.calls[question.call]
            agreed = {who for said, who in question.said.values() if said == answer}
            if answer == "did_not_happen":
                call.cleared.append((agreed, set(call.shaped)))
            self.jobs[call.job].shaped |= agreed
            del self.questions[id]

    # What the plane did -----------------------------------------------------------------------------------------

    def shapers(self, call: Call, argument: str) -> set[str]:
        """Everybody who shaped a call that is asked for now."""
        job = self.jobs[call.job]
        humans = job.shaped | job.thread.context
        if call.asker is not None:
            return humans | {call.asker}
        wrote: Iterable[str] = (job.read or ()) if job.conversation else job.thread.wrote
        sent = {self.signals[argument]} if argument in self.signals else set()
        return humans | {*wrote} | sent

    def asked(self, id: UUID, call_id: UUID, terms: tuple[Any, ...], argument: str) -> None:
        """A call was added to a request."""
        call = self.calls[call_id]
        request = self.requests.setdefault(id, Request(call.tool, terms, len(self.rules)))
        if call_id in request.calls:
            return
        call.words |= self.shapers(call, argument)
        request.calls.add(call_id)
        request.jobs.add(call.job)
        request.shaped |= call.words | call.begun_by
        call.requests.append(id)
        first = self.requests[call.requests[0]]
        if first.terms != terms:
            request.shaped |= {*self.rules[first.rules :]}

    def permit(self, id: UUID, granted: set[UUID], standing: set[UUID]) -> tuple[UUID | None, UUID | None]:
        """By which request, or by which standing approval, a call was sent: what is new since it was sent last. Times do not tell:
        the clock of a play stands still."""
        call = self.calls[id]
        new = [request for request in call.requests if request in granted - call.granted]
        if used := standing - call.standing:
            call.permit = (None, used.pop())
        elif new:
            call.permit = (new[-1], None)
        call.granted, call.standing = granted, standing
        return call.permit

    def sent(self, id: UUID, by: UUID | None, version: int, standing: UUID | None, argument: str) -> str | None:
        """A call was sent; why it must not have been."""
        call = self.calls[id]
        call.sends.append(by)
        wanted = VOTES[call.tool]
        if standing is not None:
            giver = self.standing.get(standing)
            call.shaped = self.shapers(call, argument) | call.begun_by
            if giver is None or wanted > 1 or giver in call.shaped:
                return f"{call.tool} was sent by a standing approval of {giver}, shaped by {sorted(call.shaped)}"
        elif by is None:
            return f"{call.tool} was sent and nobody was asked"
        else:
            request = self.requests[by]
            call.shaped = set(request.shaped)
            yes = request.yes[version] - (call.shaped if call.tool == "refund" else set())
            if len(yes) < wanted:
                said = f"with the yes of {sorted(request.yes[version])}, shaped by {sorted(request.shaped)}"
                return f"{call.tool} was sent {said}"
        return self._sent_again(call, wanted)

    def _sent_again(self, call: Call, wanted: int) -> str | None:
        times = len(call.sends)
        if times == 1:
            return None
        if len(call.cleared) != times - 1:
            return f"{call.tool} was sent {times} times and cleared {len(call.cleared)} times"
        said, shaped = call.cleared[-1]
        if len(said - (shaped if call.tool == "refund" else set())) < wanted:
            return f"{call.tool} was sent again on the word of {sorted(said)}, shaped by {sorted(shaped)}"
        if call.sends[-1] is not None and call.sends.count(call.sends[-1]) > 2:
            return f"{call.tool} was sent {times} times with one approval"
        return None
