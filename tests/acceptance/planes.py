"""`cortex up` as a process in a folder of its own, and commands against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx


class Plane:
    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        """``words``: of `cortex up`."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
        self.folder = folder
        self.environment = clean | environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cortex_plane", "up", *words],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A test that fails leaves nothing running."""
        if self.process.poll() is None:
            self.end(signal.SIGKILL)

    def wait_until_ready(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if "Ctrl-C stops it" in line:
                break
        assert self.process.poll() is None, self.said
        return self.access["url"]

    @cached_property
    def access(self) -> dict[str, str]:
        access: dict[str, str] = json.loads((self.folder / ".cortex" / "access.json").read_text())
        return access

    @cached_property
    def api(self) -> httpx.Client:
        """With the key of the plane's owner. For waiting, and where the command line is not what is tested: a command starts
        Python every time."""
        headers = {"Authorization": f"Bearer {self.access['key']}"}
        return httpx.Client(base_url=self.access["url"], headers=headers, timeout=60, trust_env=False)

    def cortex(self, *words: str) -> str:
        return self.run(*words, check=True).stdout

    def run(self, *words: str, check: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cortex_plane", *words],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=180,
        )

    def json(self, *words: str) -> Any:
        return json.loads(self.cortex(*words, "--json"))

    def get(self, path: str, **query: str) -> Any:
        answer = self.api.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.api.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def until(self, look: Callable[[], Any], seconds: float = 120) -> Any:
        """What ``look`` returns, once that is something."""
        deadline = time.monotonic() + seconds
        while not (seen := look()):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)
        return seen

    def asked(self, job_id: str) -> Any:
        """The approval that a job waits for, once it does."""
        return self.until(lambda: self.get("/v1/approvals", job_id=job_id)["items"])[0]

    def approve(self, job_id: str) -> None:
        card = self.asked(job_id)
        shown = {name: card[name] for name in ("version", "input_hash")}
        self.post(f"/v1/approvals/{card['id']}/decide", decision="approved", **shown)

    def require_whole_audit(self) -> None:
        assert self.get("/v1/audit/verification")["faults"] == []

    def reached(self, job_id: str, *statuses: str) -> Any:
        """The job, once it has one of these statuses."""

        def look() -> Any:
            job = self.get(f"/v1/jobs/{job_id}")
            return job if job["status"] in statuses else None

        return self.until(look)

    def acts(self, job_id: str) -> list[str]:
        """What a job of the demo did to the outside world."""
        return [act["act"] for act in self.world() if act["job"] == job_id]

    def world(self) -> list[dict[str, str]]:
        """What all of them did."""
        try:
            lines = (self.folder / ".cortex" / "demo" / "acts.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def worker_pid(self) -> int:
        """Of the worker that runs beside it, once there is one. A killed one counts as alive while its lease lasts."""

        def look() -> list[int]:
            workers = self.get("/v1/workers")["items"]
            pids = [worker["pid"] for worker in workers if worker["alive"] and "demo" in worker["apps"]]
            return [pid for pid in pids if _runs(pid)]

        return int(self.until(look)[0])

    def end(self, how: signal.Signals) -> int:
        if "api" in vars(self):
            self.api.close()
        self.process.send_signal(how)
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait(30)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def empty_folder(prefix: str) -> Iterator[Path]:
    """Short, and reachable for the unprivileged user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def running(prefix: str, **environment: str) -> Iterator[Plane]:
    """A plane in a folder of its own, which ends well."""
    with empty_folder(prefix) as folder:
        plane = Plane(folder, CORTEX_PORT="0", **environment)
        try:
            plane.wait_until_ready()
            yield plane
        finally:
            assert plane.end(signal.SIGINT) == 0, plane.said
