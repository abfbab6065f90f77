"""The mails of a plane that keeps them instead of sending them. Only what one org sent is shown to its admins."""

from __future__ import annotations

import email
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from email.policy import default
from pathlib import Path
from uuid import UUID

ORG = "X-Cortex-Org"
MOST = 200
"""So many are listed, the newest first,"""
LOOKED_AT = 5000
"""of so many that may be other orgs'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    id: str
    subject: str
    to: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    heading: Heading
    text: str
    html: str


def headings(folder: Path, org_id: UUID) -> list[Heading]:
    found: list[Heading] = []
    for path in _newest(folder)[:LOOKED_AT]:
        headers = _headers(path)
        if headers is not None and headers.get(ORG) == str(org_id):
            found.append(_heading(path, headers))
            if len(found) == MOST:
                break
    return found


def letter(folder: Path, org_id: UUID, id: str) -> Letter | None:
    """None where there is none of this name, or it is another org's."""
    path = next((each for each in _newest(folder) if each.name == id), None)
    if path is None:
        return None
    try:
        message = email.message_from_bytes(path.read_bytes(), policy=default)
    except OSError:
        return None
    if not isinstance(message, EmailMessage) or message.get(ORG) != str(org_id):
        return None
    return Letter(heading=_heading(path, message), text=_part(message, "plain"), html=_part(message, "html"))


def _newest(folder: Path) -> list[Path]:
    found: list[tuple[float, Path]] = []
    for part in ("new", "cur"):
        try:
            with os.scandir(folder / part) as entries:
                found += [(each.stat().st_mtime, Path(each.path)) for each in entries if each.is_file()]
        except OSError:
            continue
    return [path for _, path in sorted(found, key=lambda each: (each[0], each[1].name), reverse=True)]


def _headers(path: Path) -> EmailMessage | None:
    try:
        with path.open("rb") as file:
            headers = BytesHeaderParser(policy=default).parse(file)
    except OSError:
        return None
    return headers if isinstance(headers, EmailMessage) else None


def _heading(path: Path, headers: EmailMessage) -> Heading:
    return Heading(
        id=path.name,
        subject=str(headers.get("Subject", "")),
        to=str(headers.get("To", "")),
        at=datetime.fromtimestamp(path.stat().st_mtime, UTC),
    )


def _part(message: EmailMessage, kind: str) -> str:
    body = message.get_body((kind,))
    return "" if body is None else str(body.get_content())
