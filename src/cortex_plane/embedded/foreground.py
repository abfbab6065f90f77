"""A script, not a module: become the server's user, ask the kernel for a death signal, become the program.

    python -I -S foreground.py PARENT UID GID PROGRAM [ARGUMENT …]      (UID -1: stay who you are)

Why a separate interpreter and not ``preexec_fn``: that runs Python between fork and exec, where a lock held by
another thread of the parent is held for ever. Here nothing is shared. It costs some 30 ms.

The order matters. A change of user clears the death signal, so the drop comes first. The parent may have died
before the signal was set, so it is looked at again afterwards.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 126


def main(arguments: list[str]) -> None:
    parent, uid, gid = (int(text) for text in arguments[:3])
    command = arguments[3:]
    # Loaded while still privileged: afterwards the interpreter's own files may be out of reach.
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    # An ignored SIGINT is inherited (from nohup, from `&` in a script) and would swallow the death signal.
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if libc is not None and libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:
        return
    os.umask(0o077)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"cannot run {sys.argv[4]} as uid {sys.argv[2]}: {error.strerror}\n")
    sys.exit(CANNOT_RUN)
