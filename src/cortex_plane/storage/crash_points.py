"""Places where a test may kill this process: before and after every statement, model call and tool call.

Off unless CORTEX_CRASH_AT is set, and then nothing but one comparison per statement is left of it. The crash harness
first lets a run write down every point it passes (CORTEX_CRASH_LOG), then kills it at each of them in turn.
"""

from __future__ import annotations

import os
import signal

_at = int(os.environ.get("CORTEX_CRASH_AT", "0"))
_log = os.environ.get("CORTEX_CRASH_LOG")
_passed = 0

ARMED = bool(_at or _log)


def reached(point: str) -> None:
    """Ends this process as SIGKILL does if this is the point that was asked for."""
    global _passed
    if not ARMED:
        return
    _passed += 1
    if _log:
        with open(_log, "a") as file:  # noqa: PTH123 -- in a signal-like place: nothing more than needed
            file.write(f"{_passed} {point}\n")
    if _passed == _at:
        os.kill(os.getpid(), signal.SIGKILL)
