"""`cortex up` to ready, warm: the second start in the same folder."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

AIM_SECONDS = 5.0


def run(rounds: int = 3) -> bool:
    with tempfile.TemporaryDirectory(prefix="cortex-bench-") as folder:
        cold = _start(folder)
        warm = statistics.median(_start(folder) for _ in range(rounds))
    met = warm <= AIM_SECONDS
    print(f"\ncortex up to ready: cold {cold:.2f} s, warm {warm:.2f} s (aim {AIM_SECONDS:.0f} s)")
    return met


def _start(folder: str) -> float:
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "cortex_plane", "up"],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "DATABASE_URL"} | {"CORTEX_PORT": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "is up" in line:
            break
    seconds = time.perf_counter() - started
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    process.wait()
    return seconds
