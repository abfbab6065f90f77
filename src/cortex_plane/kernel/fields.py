"""Types of fields with their bounds, and how values are parsed from JSON and rows and rendered again."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, ConfigDict, Field, StringConstraints, TypeAdapter
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.canonical import check_json, check_text
from cortex_plane.kernel.errors import InvalidInput

_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SLUG_PATTERN = r"^[a-z0-9][a-z0-9-]*[a-z0-9]$"
REF_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9]$"
ATLAS_ID_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,198}[a-z0-9])?$"
ATLAS_VERSION_PATTERN = r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$"
MAX_ATLASES = 20
"""Of one agent, and of one session."""
MAX_TEXT = 100_000
MAX_OBJECT_BYTES = 256 * 1024
MAX_BODY_BYTES = 1024 * 1024
"""Of a request, where arguments, results or messages belong. Files of policies and atlases are larger."""
BODY_LIMIT = "x-max-body-bytes"
"""The extension in which a route says how large its body may be."""

DRAFT = ConfigDict(extra="forbid", str_strip_whitespace=False, strict=False, defer_build=True)
"""What callers send: unknown fields are errors, never ignored. Validators are built on first use: a process uses few of them."""


def split_ref(ref: str) -> tuple[UUID | None, str | None]:
    """The id or the slug that a reference stands for."""
    try:
        return UUID(ref), None
    except ValueError:
        return None, ref


def _not_an_id(value: str) -> str:
    if split_ref(value)[0] is not None:
        raise PydanticCustomError("slug_like_id", "must not look like an id")
    return value


def refused_as(code: str, check: Callable[..., object], *rest: Any) -> AfterValidator:
    """Runs ``check(value, *rest)``; its ``InvalidInput`` becomes a fault of the field with this code."""

    def validate(value: Any) -> Any:
        try:
            check(value, *rest)
        except InvalidInput as error:
            raise PydanticCustomError(code, "{reason}", {"reason": error.message}) from None
        return value

    return AfterValidator(validate)


_storable = refused_as("unstorable_text", check_text, "text")


def _visible(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("blank", "must contain more than white space")
    if _CONTROL.search(value):
        raise PydanticCustomError("control_character", "must not contain control characters")
    return value.strip()


Name = Annotated[str, StringConstraints(min_length=1, max_length=200), _storable, AfterValidator(_visible)]
Slug = Annotated[str, StringConstraints(min_length=2, max_length=100, pattern=SLUG_PATTERN), AfterValidator(_not_an_id)]
Ref = Annotated[
    str, StringConstraints(min_length=2, max_length=100, pattern=REF_PATTERN), Field(description="Its id or its slug.")
]
AtlasId = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=ATLAS_ID_PATTERN)]
AtlasVersionName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=ATLAS_VERSION_PATTERN)]
AtlasIds = Annotated[list[AtlasId], Field(max_length=MAX_ATLASES)]
Storable = Annotated[str, _storable]
"""A text that PostgreSQL can keep."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT), _storable]
Note = Annotated[str, StringConstraints(max_length=2000), _storable]
ExternalId = Annotated[str, StringConstraints(min_length=1, max_length=255), _storable, AfterValidator(_visible)]
ChannelType = Annotated[str, StringConstraints(min_length=1, max_length=50, pattern=r"^[a-z][a-z0-9_-]*$")]
Clearance = Annotated[int, Field(strict=True, ge=0, le=1000)]
JsonObject = Annotated[dict[str, Any], refused_as("unstorable_json", check_json, "object", MAX_OBJECT_BYTES)]
JsonValue = Annotated[Any, refused_as("unstorable_json", check_json, "value", MAX_OBJECT_BYTES)]


class Risk(StrEnum):
    """How much harm a call can do."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


RISKS = tuple(Risk)
"""From the lowest to the highest."""
UNDECLARED = Risk.MEDIUM
"""What is assumed of a tool that does not declare its risk."""


def highest_risk(own: Risk, *others: Risk | None) -> Risk:
    """What is declared about a call never lowers what is known of its tool. None: nothing is known."""
    return max((own, *(risk for risk in others if risk is not None)), key=RISKS.index)


def _in_our_time(moment: datetime) -> datetime:
    """Clocks and databases have ends: nothing is computed near them."""
    if not 1970 <= moment.year <= 9000:
        raise PydanticCustomError("out_of_time", "must lie between the years 1970 and 9000")
    return moment


def _no_number(value: Any) -> Any:
    """A number could be seconds or milliseconds: a time is written out."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = 0
    if isinstance(value, int | float):
        raise PydanticCustomError("moment", "must be a time with its zone, such as 2026-12-01T09:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_no_number), AfterValidator(_in_our_time)]


T = TypeVar("T")


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)
"""Building one costs milliseconds, using one microseconds: build each once."""


def parse(kind: type[T], value: Mapping[str, Any]) -> T:
    """Text becomes the enum, id or time it stands for; fields that the value lacks are dropped."""
    result: T = adapter(kind).validate_python(dict(value))
    return result


def to_json(value: Any) -> bytes:
    return adapter(type(value)).dump_json(value)
