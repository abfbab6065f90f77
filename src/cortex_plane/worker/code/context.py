"""What the function of a code agent is given: every way in which it may wait, act or look at something that changes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import UUID

from cortex_plane.jobs.model.journal import ContextMisused, GateClosed, ToolFailed
from cortex_plane.worker.code import wishes

if TYPE_CHECKING:
    from cortex_plane.worker.code.journal_replay import JournalReplay

T = TypeVar("T")
NO_MORE = "It takes no more answers: go another way."


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What people said to a request. It counts as true where they approved."""

    approved: bool
    reason: str | None = None
    by: str | None = None
    """Who decided; None where nobody did."""

    def __bool__(self) -> bool:
        return self.approved


def passed(told: Mapping[str, Any]) -> bool:
    """What gates said to an answer."""
    if told.get("error"):
        raise ToolFailed(str(told["error"]))
    if told.get("shut"):
        raise GateClosed(f"The gate `{told.get('gate')}` is shut: {told.get('reason', '')}", hint=NO_MORE)
    return bool(told.get("passed"))


class Operation(Generic[T]):
    """Begins when it is awaited, and is awaited once. One that never is ends the job with an error that names it."""

    def __init__(self, player: JournalReplay, what: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.what = what
        self._player, self._begin = player, begin
        self._begun = False
        player.unawaited.append(self)

    def __await__(self) -> Generator[Any, None, T]:
        if self._begun:
            raise ContextMisused(f"{self.what} was awaited twice.", hint="Keep its result in a variable.")
        self._begun = True
        self._player.unawaited.remove(self)
        return self._begin().__await__()


class Context:
    """One job of a code agent. Everything it gives was recorded: when the job goes on, the same comes again."""

    def __init__(
        self, player: JournalReplay, *, payload: dict[str, Any], job_id: UUID, session_id: UUID, agent: str
    ) -> None:
        self.payload = payload
        self.job_id = job_id
        self.session_id = session_id
        self.agent = agent
        """Its slug."""
        self._player = player

    def __repr__(self) -> str:
        return f"Context(job_id={str(self.job_id)!r})"

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Operation[T]: ...

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Operation[T]: ...

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Operation[Any]:
        """Call a function and record what it returned, as JSON. It may run again if the worker dies before that: what must
        happen once is a tool. Raises `StepFailed` where the function raised, after so many ``retries``."""
        return self._operation(
            f"The step `{name}`",
            lambda: self._player.perform(wishes.step(name, function, args, retries, timeout)),
        )

    def tool(self, name: str, /, **arguments: Any) -> Operation[Any]:
        """Call a tool of the app: by its policies, approvals and ledger. Raises `ToolFailed` or `ToolDenied`."""
        return self._operation(
            f"The tool `{name}`", lambda: self._player.perform(wishes.tool(name, arguments))
        )

    def answer(self, gate: str, answers: Mapping[str, Any], *, call: str | None = None) -> Operation[bool]:
        """Answer a gate that `GateClosed` told of: whether it is passed. ``call`` names the call that it stops, where it
        stops several. Raises `GateClosed` where it takes no more answers, `ToolFailed` where it does not wait for any."""
        return self._operation(
            f"The answer to `{gate}`", lambda: self._answered(wishes.answer(gate, answers, call))
        )

    async def _answered(self, wish: wishes.ToolWish) -> bool:
        return passed(await self._player.perform(wish))

    def request_approval(
        self,
        action: str,
        *,
        details: Mapping[str, Any] | None = None,
        approvers: Sequence[UUID | str] | None = None,
        timeout: float | None = None,
        quorum: int | None = None,
        clearance: int | None = None,
    ) -> Operation[Decision]:
        """Ask people, always, whatever policies say of `plane.ask`; they say who decides. ``approvers`` (ids of members),
        ``timeout`` (seconds), ``quorum`` and ``clearance`` only tighten that. A no is a Decision, and not an error."""
        return self._operation(
            "The request for approval",
            lambda: self._player.perform(
                wishes.approval(action, details, approvers, timeout, quorum, clearance)
            ),
        )

    def model(
        self,
        prompt: str,
        *,
        system: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> Operation[str]:
        """Ask the agent's model, without tools, and record its text. Raises `ModelError`."""
        return self._operation(
            "The request to the model",
            lambda: self._player.perform(wishes.model(prompt, system, temperature, max_tokens)),
        )

    def sleep(
        self, seconds: float | timedelta | None = None, *, until: datetime | None = None
    ) -> Operation[None]:
        """Go on later. Until then the job holds no worker."""
        return self._operation("The sleep", lambda: self._player.perform(wishes.sleep(seconds, until)))

    def wait_event(self, name: str, *, key: str, timeout: float | timedelta | None = None) -> Operation[Any]:
        """The payload of the signal ``name`` with this key, sent before or after. Raises `WaitTimeout`."""
        return self._operation(
            f"The wait for `{name}`", lambda: self._player.perform(wishes.wait(name, key, timeout))
        )

    def now(self) -> Operation[datetime]:
        """The time of the plane, the same whenever the job goes on."""
        return self._operation(
            "The time", lambda: self._player.perform(wishes.value("now", self._player.now))
        )

    def random(self) -> Operation[float]:
        """A number from 0 to 1, the same whenever the job goes on."""
        # Not for secrets: it stands in the journal.
        return self._operation(
            "The number", lambda: self._player.perform(wishes.value("random", random.random))
        )

    def uuid(self) -> Operation[UUID]:
        return self._operation("The id", lambda: self._player.perform(wishes.value("uuid", uuid.uuid4)))

    def gather(self, *branches: Awaitable[Any], return_exceptions: bool = False) -> Operation[list[Any]]:
        """All of these at once, each a branch of its own. If one waits, the others go as far as they can; if one raises,
        the others end first. With ``return_exceptions`` what they raised stands among the results."""
        return self._operation("The gather", lambda: self._player.branch(branches, return_exceptions))

    def _operation(self, what: str, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Operation[Any]:
        return Operation(self._player, what, begin)
