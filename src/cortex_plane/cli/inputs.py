"""What people type: files, JSON, secrets on standard input, and the names of colleagues."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import UUID

from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import AlreadyExists, InvalidInput, NotFound

if TYPE_CHECKING:
    from cortex_plane.client import Client

QUOTE_JSON = "Quote it: '{\"a\": 1}'."


def read_text(file: Path) -> str:
    """A file as text; `-` is standard input."""
    try:
        return read_bytes(file, hint="Name a file.").decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8: {error}.", hint="Save it as UTF-8.") from error


def read_bytes(file: Path, hint: str = "Check its name.") -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.", hint=hint) from error


@contextlib.contextmanager
def new_file(file: str | Path) -> Iterator[BinaryIO]:
    """A new file for its owner alone, removed again if it is not completed. An existing file is not overwritten."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise AlreadyExists(f"{file} is there already.", hint="Choose another name, or remove it.") from error
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}.", hint="Choose another place.") from error
    try:
        with os.fdopen(descriptor, "wb") as output:
            yield output
    except BaseException:
        Path(file).unlink(missing_ok=True)
        raise


def read_secret(text: str) -> str:
    """An argument that no shell need remember: `-` reads it from standard input."""
    return (sys.stdin.readline() if text == "-" else text).strip()


def parse_json(text: str, complaint: str, hint: str = QUOTE_JSON) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise InvalidInput(f"{complaint}: {error}.", hint=hint) from error


async def member_id(plane: Client, text: str) -> UUID:
    """The id of a colleague, who is named by id or by the whole name."""
    with contextlib.suppress(ValueError):
        return UUID(text)
    colleagues = await plane.absences.delegates(name=text)
    if not colleagues:
        raise NotFound(
            f"There is no active member called {text!r} besides you.",
            code="member_not_found",
            hint="`cortex absence delegates` lists them; write the whole name, or the id.",
        )
    if len(colleagues) > 1:
        ids = ", ".join(str(colleague.id) for colleague in colleagues)
        raise InvalidInput(f"Several members are called {text!r}: {ids}.", hint="Use the id of one.")
    return colleagues[0].id
