"""Command lines of child processes that the kernel ends with their parent. This file is also the script that they begin with:

    python -I -S child_process.py PARENT SIGNAL UID GID PROGRAM [ARGUMENT …]      (UID -1: stay who you are)

Why a separate interpreter and not ``preexec_fn``: that runs Python between fork and exec, where a lock held by another
thread of the parent is held for ever. Here nothing is shared. It costs some 30 ms.

The order matters. A change of user clears the death signal, so the drop comes first. The parent may have died before the
signal was set, so it is looked at again afterwards.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 126


def bound_to_parent(
    command: Sequence[str], death_signal: signal.Signals, user: tuple[int, int] | None = None
) -> list[str]:
    """``command``, which gets ``death_signal`` when this process ends; ``user``: the uid and gid that it runs as."""
    uid, gid = user or (-1, -1)
    numbers = (os.getpid(), int(death_signal), uid, gid)
    return [sys.executable, "-I", "-S", __file__, *map(str, numbers), *command]


def become_program(arguments: list[str]) -> None:
    parent, death_signal, uid, gid = (int(text) for text in arguments[:4])
    command = arguments[4:]
    # Loaded while still privileged: afterwards the interpreter's own files may be out of reach.
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    # An ignored SIGINT is inherited (from nohup, from `&` in a script) and would swallow the death signal.
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if libc is not None and libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() == parent:
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    try:
        become_program(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"cannot run {sys.argv[5]} as uid {os.geteuid()}: {error.strerror}\n")
    sys.exit(CANNOT_RUN)
