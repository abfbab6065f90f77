"""A script, not a module: ask the kernel to be killed with the worker, then become the server.

    python -I -S child.py PARENT PROGRAM [ARGUMENT …]

A separate interpreter and not ``preexec_fn``, which runs Python between fork and exec, where a lock held by another
thread of the worker is held for ever. The worker may have died before the signal was set, so it is looked at again.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 126


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    if os.getppid() != parent:
        return
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"cannot run {sys.argv[2]}: {error.strerror}\n")
    sys.exit(CANNOT_RUN)
