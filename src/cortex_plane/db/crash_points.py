"""Places where a test may kill this process: before and after every statement, commit, model call and tool call.

A point is a name and how often it was passed: `advance_job:before#3`. Off unless CORTEX_CRASH_AT or CORTEX_CRASH_LOG
is set (or `arm` was called), and then nothing but one comparison per statement is left of it. The crash harness first
lets a run write down every point it passes, then kills one at each of them in turn.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

armed = False
_at: str | None = None
_log: str | None = None
_how = signal.SIGKILL
_passed: Counter[str] = Counter()


def arm(at: str | None, log: str | None, how: signal.Signals = signal.SIGKILL) -> None:
    """Count from here. ``at`` is the point to die (or stop) at, ``log`` the file that every point is written to."""
    global armed, _at, _log, _how
    _at, _log, _how = at, log, how
    _passed.clear()
    armed = bool(at or log)


def reached(name: str) -> None:
    """Sends this process the signal if this is the point that was asked for."""
    if not armed:
        return
    _passed[name] += 1
    point = f"{name}#{_passed[name]}"
    if _log:
        with open(_log, "a") as file:  # noqa: PTH123 -- in a signal-like place: nothing more than needed
            file.write(f"{point}\n")
    if point == _at:
        os.kill(os.getpid(), _how)


arm(os.environ.get("CORTEX_CRASH_AT"), os.environ.get("CORTEX_CRASH_LOG"))
