"""The key that the plane signs with: from the environment, or from a file that only its owner can read."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.settings import Settings

KEY_FILE = "master.key"
KEY_BYTES = 32


def master_key(settings: Settings) -> bytes:
    if settings.master_key is not None:
        return _parsed(settings.master_key, "CORTEX_MASTER_KEY")
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
    return _parsed(_read(path), str(path))


def master_key_at_hand(settings: Settings) -> bytes | None:
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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise SetupError(
            f"The master key in {path} cannot be read: {error.strerror}.", code="home_unusable"
        ) from error


def _parsed(text: str, source: str) -> bytes:
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
