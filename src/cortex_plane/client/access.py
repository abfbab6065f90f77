"""Where a plane on this machine keeps its address and a key: `access.json` in its directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TextIO

HOME = Path(".cortex")
ACCESS_FILE = "access.json"


def plane_home() -> Path:
    """The plane's directory: CORTEX_HOME, else `.cortex` in this folder."""
    return Path(os.environ.get("CORTEX_HOME") or HOME)


def read_access(home: Path) -> dict[str, str]:
    """The ``url`` and ``key`` that `cortex up` wrote down; empty when there are none."""
    return read_private(home / ACCESS_FILE)


def read_private(path: Path) -> dict[str, str]:
    """What `write_private` wrote; empty where nothing can be read."""
    try:
        content: dict[str, str] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content


def write_private(path: Path, content: dict[str, object]) -> None:
    """Write at once or not at all, for the owner's eyes only."""
    draft = path.with_name(path.name + ".new")
    with private_file(draft) as file:
        json.dump(content, file)
    draft.replace(path)


def private_file(path: Path) -> TextIO:
    """A new file, in the place of an earlier one, for its owner alone; where root makes it, for the owner of its folder."""
    path.unlink(missing_ok=True)
    # Never through a link that somebody laid there: what is written may be written by root.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return os.fdopen(descriptor, "w")
