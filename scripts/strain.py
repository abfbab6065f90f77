"""Run a command while a busy loop loads each core: python -m scripts.strain COMMAND …

The loops end with the command. They also end by themselves where this process is killed, and after two hours.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

MOST_SECONDS = 2 * 60 * 60


def main(command: list[str]) -> int:
    if not command:
        sys.exit(__doc__)
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for loop in loops:
        loop.start()
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def spin() -> None:
    """Use a core for as long as the parent lives."""
    deadline = time.monotonic() + MOST_SECONDS
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive() and time.monotonic() < deadline:
        sum(range(100_000))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
