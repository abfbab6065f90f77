"""What people type: files, JSON, and the names of people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from cortex_plane.kernel.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from cortex_plane.client import Client


def text_of(file: Path) -> str:
    """A file as text; `-` is stdin."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.decode()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.", hint="Name a file.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8: {error}.", hint="Save it as UTF-8.") from error


async def member_id(plane: Client, text: str) -> UUID:
    """Of the one colleague who is meant."""
    try:
        return UUID(text)
    except ValueError:
        pass
    found = await plane.absences.delegates(name=text)
    if not found:
        raise NotFound(
            f"There is no active member called {text!r} besides you.",
            code="member_not_found",
            hint="`cortex absence delegates` lists them; write the whole name, or the id.",
        )
    if len(found) > 1:
        ids = ", ".join(str(each.id) for each in found)
        raise InvalidInput(f"Several members are called {text!r}: {ids}.", hint="Use the id of one.")
    return found[0].id
