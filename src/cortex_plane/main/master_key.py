"""The key that the plane signs with: from the environment, or from a file that only its owner can read.

A rotation writes the new key into a second file before the database knows it. Whichever process comes next puts that file into the place of
the first one, once the database knows its key.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.verbs.master_key import read_plane_key
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.settings import Settings

KEY_FILE = "master.key"
NEXT_KEY_FILE = "master.key.next"
KEY_BYTES = 32


def master_key(settings: Settings) -> bytes:
    if settings.master_key is not None:
        return parse_master_key(settings.master_key, "CORTEX_MASTER_KEY")
    path = settings.home / KEY_FILE
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise SetupError(
                f"The master key cannot be kept in {path}: {error.strerror}.",
                code="home_unusable",
                hint="Set CORTEX_MASTER_KEY, or CORTEX_HOME to a folder that you may write to.",
            ) from error
    return parse_master_key(_read(path), str(path))


def next_master_key(settings: Settings) -> bytes:
    """The new key of a rotation. It is made once, also where two rotations begin at the same moment or one of them died."""
    path = settings.home / NEXT_KEY_FILE
    if not path.exists():
        _make(path)
    return parse_master_key(_read(path), str(path))


async def install_next_master_key(settings: Settings, db: Database) -> None:
    """Put the new key into the place of the old one, where the database knows it already. The old one gets a name of its own:
    backups from before need it."""
    current, path = settings.home / KEY_FILE, settings.home / NEXT_KEY_FILE
    if settings.master_key is not None or not path.exists():
        return
    plane_key = await read_plane_key(db)
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        new, old = (Vault(parse_master_key(file.read_text(), str(file))) for file in (path, current))
        if plane_key is not None and plane_key.fingerprint == new.fingerprint:
            try:
                if old.fingerprint != new.fingerprint:
                    with contextlib.suppress(FileExistsError):
                        os.link(current, current.with_name(f"{KEY_FILE}.{old.fingerprint.hex()[:8]}"))
                path.replace(current)
                _sync_folder(settings.home)
            except PermissionError as error:
                raise SetupError(
                    f"{current} cannot be replaced: {error.strerror}.",
                    code="home_unusable",
                    hint=f"{path} holds the master key of this database now: put it into the place of {current}.",
                ) from error


def existing_master_key(settings: Settings) -> bytes | None:
    """For whoever only looks: None where there is none, or not for this user to read. None is made."""
    if settings.master_key is None and not os.access(settings.home / KEY_FILE, os.R_OK):
        return None
    return master_key(settings)


def _make(path: Path) -> None:
    """Whole and on the disk before it has its name: what is signed with a lost key could never be opened again."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        file.write(secrets.token_bytes(KEY_BYTES).hex() + "\n")
        file.flush()
        os.fsync(descriptor)
    try:
        with contextlib.suppress(FileExistsError):  # whoever was first made the key for all
            os.link(draft, path)
    finally:
        draft.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise SetupError(f"The master key in {path} cannot be read: {error.strerror}.", code="home_unusable") from error


def parse_master_key(text: str, source: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SetupError(
            f"{source} does not hold a key: 64 hexadecimal digits are needed.",
            code="invalid_setting",
            hint="Make one with `openssl rand -hex 32`, and use the same for every process of the plane.",
        )
    return key
