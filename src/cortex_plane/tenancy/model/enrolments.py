"""Enrolment codes: an admin hands one over, and whoever redeems it gets a session or a key of their own."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Name

CODE_PREFIX = "cortex_enrol_"
_CODE = re.compile(CODE_PREFIX + r"[A-Za-z0-9_-]{43}")
CODE_LIFE = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnrolmentCode:
    """Works once, for one person. It is shown this once; whoever handed it over counts as one human with whoever redeems it,
    until they have proven a channel of their own."""

    member_id: UUID
    code: str
    url_path: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Enrolment:
    """What a code would do now."""

    id: UUID
    member_id: UUID
    member: str
    org: str
    issued_by: str


@draft(config=DRAFT, frozen=True, kw_only=True)
class Redemption:
    """A code, and the name of the key that it is redeemed for."""

    code: Annotated[str, Field(min_length=1, max_length=100)]
    key_name: Name = "command line"


def is_code(text: str) -> bool:
    return _CODE.fullmatch(text) is not None


def digest(code: str) -> bytes:
    """What is stored. A code is 256 random bits, so no salt is needed."""
    return hashlib.sha256(code.encode()).digest()


def path_of(code: str) -> str:
    return f"/enrol/{code}"
