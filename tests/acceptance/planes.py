"""`cortex up` as a process in a folder of its own, and commands against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Plane:
    def __init__(self, folder: Path, **environment: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
        self.folder = folder
        self.environment = clean | environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cortex_plane", "up"],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def wait_until_ready(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if "Ctrl-C stops it" in line:
                break
        assert self.process.poll() is None, self.said
        access: dict[str, str] = json.loads((self.folder / ".cortex" / "access.json").read_text())
        return access["url"]

    def cortex(self, *words: str) -> str:
        return self.run(*words, check=True).stdout

    def run(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cortex_plane", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def json(self, *words: str) -> Any:
        return json.loads(self.cortex(*words, "--json"))

    def asked(self, job_id: str, seconds: float = 60) -> Any:
        """The approval that a job waits for, once it does."""
        deadline = time.monotonic() + seconds
        while not (pending := self.json("approval", "list", "--job", job_id)):
            assert time.monotonic() < deadline, self.cortex("job", "show", job_id)
            time.sleep(0.05)
        return pending[0]

    def approve(self, job_id: str) -> None:
        self.cortex("approval", "approve", self.asked(job_id)["id"])

    def until(self, job_id: str, *statuses: str, seconds: float = 60) -> Any:
        """The job, once it has one of these statuses."""
        deadline = time.monotonic() + seconds
        while True:
            job = self.json("job", "show", job_id)
            if job["status"] in statuses:
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.1)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait(30)
