"""The data directory: whether it can be served, and how a new one comes to be."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from shlex import quote

from cortex_plane.embedded import account as accounts
from cortex_plane.embedded.account import USE_A_SERVER, Account, explain_os_errors
from cortex_plane.embedded.binaries import BINARIES_SETTING, Binaries, find_version
from cortex_plane.embedded.places import DATA_NAME, SOCKETS_NAME, fits
from cortex_plane.embedded.postmaster import SUPERUSER, run
from cortex_plane.kernel.errors import SetupError

PASSWORD_NAME = "postgres.password"  # noqa: S105
_STAGING_PREFIX = "postgres.new-"
# From this version on PostgreSQL brings a locale of its own that sorts by code point and knows all of Unicode.
_BUILTIN_LOCALE = 17


def check(data: Path, binaries: Binaries) -> None:
    """Refuse what these binaries cannot serve. The data is not touched."""
    if not (data / "PG_VERSION").is_file() or not (data / "global" / "pg_control").is_file():
        raise SetupError(
            f"{data} is not empty and not a PostgreSQL cluster.",
            code="embedded_not_a_cluster",
            hint="Move its content away, or start in another directory.",
        )
    text = (data / "PG_VERSION").read_text().strip()
    if text != str(binaries.version):
        raise _other_version(data, text, binaries)


def check_owner(data: Path, account: Account) -> None:
    """As a stranger one cannot even look inside, so this comes before everything else."""
    try:
        owner = data.stat().st_uid
    except FileNotFoundError:
        return
    if owner != account.uid:
        raise SetupError(
            f"{data} belongs to {accounts.describe(owner)}, but the server would run as {account}.",
            code="embedded_wrong_owner",
            hint=f"Start as its owner, or hand it over: `chown -R {account.uid} {quote(str(data))}`.",
        )


def _other_version(data: Path, text: str, binaries: Binaries) -> SetupError:
    fitting = find_version(int(text)) if text.isdecimal() else None
    serve = f"Install PostgreSQL {text} and set {BINARIES_SETTING} to its bin directory to serve it as it is."
    if fitting is not None:
        serve = f"Set {BINARIES_SETTING}={quote(str(fitting))} to serve it as it is."
    sockets = data.with_name(SOCKETS_NAME)
    login = f"-h {quote(str(sockets))} -U {SUPERUSER}" if fits(sockets) else f"-h HOST -U {SUPERUSER}"
    save = quote(str(binaries.program("pg_dumpall")))
    load = quote(str(binaries.program("psql")))
    return SetupError(
        f"{data} was made by PostgreSQL {text}, and the binaries in {binaries.directory} are version "
        f"{binaries.version}. Nothing was changed.",
        code="embedded_other_version",
        hint=f"{serve} To move on to version {binaries.version}: start that way, save everything with "
        f"`{save} {login} > all.sql`, stop, move {data} away, start without the setting, and load it with "
        f"`{load} {login} -f all.sql postgres`.",
    )


def create(directory: Path, home: Path, account: Account, binaries: Binaries, *, sync: bool) -> None:
    """Make the cluster beside its final place and rename it: killed at any time, it leaves nothing half-made."""
    with explain_os_errors(f"create the database cluster in {home}", home):
        _sweep(home)
        password = read_password(directory) or _write_password(directory, secrets.token_hex(24))
        staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=home))
        try:
            _initdb(staging, password, account, binaries, sync=sync)
            # rename() replaces an empty directory.
            (staging / "data").rename(home / DATA_NAME)
            if sync:
                sync_folder(home)
        finally:
            # What a killed predecessor began may have written on while the first sweep was at it.
            _sweep(home)


def _sweep(home: Path) -> None:
    for directory in home.glob(f"{_STAGING_PREFIX}*"):
        shutil.rmtree(directory, ignore_errors=True)


def _initdb(staging: Path, password: str, account: Account, binaries: Binaries, *, sync: bool) -> None:
    secret = staging / "password"
    secret.touch(mode=0o600)
    secret.write_text(f"{password}\n")
    account.own(secret)
    account.own(staging)
    locale = ["--locale=C"]
    if binaries.version >= _BUILTIN_LOCALE:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    command = [
        str(binaries.program("initdb")),
        f"--pgdata={staging / 'data'}",
        f"--username={SUPERUSER}",
        f"--pwfile={secret}",
        "--auth-local=trust",
        "--auth-host=scram-sha-256",
        "--encoding=UTF8",
        *locale,
        "--data-checksums",
        "--no-instructions",
        *([] if sync else ["--no-sync"]),
    ]
    code, output = run(command, account)
    if code != 0:
        raise _initdb_failed(staging.parent, account, code, output)


def _initdb_failed(home: Path, account: Account, code: int, output: str) -> SetupError:
    if (error := accounts.space_error(home, output, f"Cannot create the database cluster in {home}")) is not None:
        return error
    if "could not look up effective user ID" in output:
        return SetupError(
            f"PostgreSQL cannot be set up as {account}: it has no entry in /etc/passwd.",
            code="embedded_no_user",
            hint=f"Start as a user that has one, add a line for it to /etc/passwd, or {USE_A_SERVER}.",
        )
    lines = "\n".join(output.strip().splitlines()[-12:])
    return SetupError(
        f"Cannot create the database cluster in {home}: initdb ended with code {code} and said:\n{lines}\n",
        code="embedded_initdb",
        hint=f"Put right what it says and start again, or {USE_A_SERVER}.",
    )


def read_password(directory: Path) -> str | None:
    try:
        return (directory / PASSWORD_NAME).read_text().strip() or None
    except FileNotFoundError:
        return None


def ensure_password(directory: Path, data: Path, account: Account, binaries: Binaries) -> str:
    """The superuser's password; if its file is gone, a new one is set in the stopped cluster."""
    if (existing := read_password(directory)) is not None:
        return existing
    password = secrets.token_hex(24)
    command = [str(binaries.program("postgres")), "--single", "-D", str(data), "postgres"]
    code, output = run(command, account, text=f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'\n")
    if code != 0 or "ERROR" in output:
        raise SetupError(
            f"Cannot set a new password in {data}:\n{output.strip()}\n",
            code="embedded_password",
            hint="Start without TCP, or put right what it says and start again.",
        )
    # Written last: until then a missing file leads back here.
    return _write_password(directory, password)


def _write_password(directory: Path, password: str) -> str:
    path = directory / PASSWORD_NAME
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        accounts.give_to_owner_of(directory, descriptor)
        file.write(f"{password}\n")
    return password


def sync_folder(directory: Path) -> None:
    """The names of its files are on the disk when this returns."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
