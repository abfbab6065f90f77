"""Child processes that do not outlive this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cortex_plane.embedded.account import Account

_SCRIPT = Path(__file__).with_name("foreground.py")
# Nothing else is passed on: PG* variables would change the server, and secrets do not belong in it.
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# A fast shutdown writes a checkpoint; SIGQUIT drops it and costs a recovery at the next start.
STOP_STEPS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


def spawn(command: Sequence[str], account: Account, *, log: int) -> subprocess.Popen[bytes]:
    """Start ``command`` in the foreground of its own session, so that a Ctrl-C is ours to pass on."""
    return subprocess.Popen(  # noqa: S603
        _wrapped(command, account),
        cwd="/",
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def run(command: Sequence[str], account: Account, *, text: str = "") -> tuple[int, str]:
    """Run ``command`` to its end with ``text`` as its input: the exit code and all it said."""
    process = subprocess.run(  # noqa: S603
        _wrapped(command, account),
        cwd="/",
        env=_environment(),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        check=False,
    )
    return process.returncode, process.stdout


def stop(child: subprocess.Popen[bytes]) -> None:
    for number, seconds in STOP_STEPS:
        if child.poll() is not None:
            return
        child.send_signal(number)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return


def _wrapped(command: Sequence[str], account: Account) -> list[str]:
    uid, gid = (account.uid, account.gid) if account.dropped else (-1, -1)
    script = [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid()), str(uid), str(gid)]
    return [*script, *command]


def _environment() -> dict[str, str]:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # English messages: some of them are recognised.
    return environment | {"LC_ALL": "C", "TZ": "UTC"}
