"""Places to start servers in, and processes that own them."""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from cortex_plane.embedded import EmbeddedPostgres, places

OWNER = Path(__file__).with_name("owner.py")
NOBODY = 65534
FAST = {"fsync": "off"}


def _until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        time.sleep(0.005)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def until() -> Callable[..., None]:
    return _until


@pytest.fixture
def gone() -> Callable[[int], bool]:
    return _gone


def _root() -> str:
    """Memory, where there is enough of it: a cluster is a thousand small files."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30 else "/tmp"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that everybody can enter (pytest's own is closed), with its own stand-ins for /var/lib and /tmp."""
    path = Path(tempfile.mkdtemp(prefix="cx-", dir=_root())).resolve()
    path.chmod(0o755)
    (path / "short").mkdir()
    monkeypatch.setattr(places, "SHARED_ROOTS", (path / "shared",))
    monkeypatch.setattr(places, "SHORT_ROOTS", (path / "short",))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def seed() -> Iterator[Callable[[Path], None]]:
    """Put a new cluster into a directory that does not exist yet; a copy takes a tenth of the time of initdb."""
    root = Path(tempfile.mkdtemp(prefix="cx-", dir=_root())).resolve()
    root.chmod(0o755)
    template = root / ".cortex"
    with EmbeddedPostgres(template, settings=FAST):
        pass

    def plant(directory: Path) -> None:
        if directory.exists():
            return
        places.prepare_directory(directory)
        parts = [str(template / name) for name in ("postgres", "postgres.password")]
        subprocess.run(["cp", "-a", *parts, str(directory)], check=True)

    yield plant
    shutil.rmtree(root)


@pytest.fixture
def launch(place: Path, seed: Callable[[Path], None]) -> Iterator[Callable[..., EmbeddedPostgres]]:
    """Make a launcher that is stopped after the test.

    Unless it is to be ``fresh``, a directory that is missing gets a cluster first. fsync is off.
    """
    made: list[EmbeddedPostgres] = []

    def make(directory: Path | None = None, *, fresh: bool = False, **options: Any) -> EmbeddedPostgres:
        directory = directory or place / ".cortex"
        if not fresh:
            seed(directory)
        launcher = EmbeddedPostgres(directory, **{"settings": FAST, **options})
        made.append(launcher)
        return launcher

    yield make
    for launcher in made:
        launcher.stop()


@pytest.fixture
def fetch() -> Callable[[str, str], Any]:
    async def run(url: str, query: str) -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return lambda url, query: asyncio.run(run(url, query))


@functools.cache
def _python_of(uid: int | None) -> str | None:
    """An interpreter that this user can run: ours, or the system's of the same version; its own packages are ours."""
    if uid is None:
        return sys.executable
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [python, "-c", "import asyncpg, cortex_plane.embedded"],
                cwd="/",
                env=_packages(),
                user=uid,
                group=uid,
                extra_groups=[],
                stderr=subprocess.DEVNULL,
                check=True,
            )
            return python
    return None


def _packages() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class Owner:
    """A process that runs owner.py."""

    def __init__(self, directory: Path, uid: int | None = None) -> None:
        python = _python_of(uid)
        assert python is not None
        self.process = subprocess.Popen(
            [python, str(OWNER), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=_packages(),
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
        self.pid = self.process.pid
        self.postgres = 0

    def report(self) -> dict[str, str]:
        assert self.process.stdout is not None
        report: dict[str, str] = json.loads(self.process.stdout.readline())
        self.postgres = int(report.get("postgres", 0))
        return report

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        if self.postgres and not _gone(self.postgres):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.postgres, signal.SIGINT)
            _until(lambda: _gone(self.postgres), f"the end of {self.postgres}")


@pytest.fixture
def owner(place: Path, seed: Callable[[Path], None]) -> Iterator[Callable[..., Owner]]:
    made: list[Owner] = []

    def start(directory: Path, uid: int | None = None, *, fresh: bool = False) -> Owner:
        if not fresh:
            seed(directory)
        made.append(Owner(directory, uid))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def stranger() -> int:
    """An ordinary user's uid: nobody's when root runs the tests, else the user's own."""
    if os.geteuid() != 0:
        return os.geteuid()
    if _python_of(NOBODY) is None:
        pytest.skip("no Python interpreter with these packages is readable for an ordinary user")
    return NOBODY


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can do this")
