"""Files that are named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from cortex_plane.kernel.errors import InvalidInput


def text_of(file: Path) -> str:
    """A file as text; `-` is stdin."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.decode()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.", hint="Name a file.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8: {error}.", hint="Save it as UTF-8.") from error
