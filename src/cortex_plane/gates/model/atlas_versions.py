"""Published atlases: immutable versions, which of them holds, and what sessions are bound to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.gates.model.atlases import MAX_ATLAS_BYTES, AccessType, AtlasVersion
from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import DRAFT

FILE_NAME = "atlas.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasSummary:
    """An atlas of the org, with all its versions taken together."""

    atlas_id: str
    name: str
    """As its newest version has it."""
    holds: str | None
    """The version that new sessions are bound to; None where all are retired."""
    newest: str
    """The version that was published last, retired or not."""
    versions: int
    published_by: str
    published_at: datetime
    """Of the newest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedVersion(AtlasVersion):
    """A version in the order in which they were published."""

    number: int
    holds: bool
    """New sessions are bound to it."""
    access: AccessType
    api_keys: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasVersionDetails(NumberedVersion):
    sessions: int
    """Open ones that are bound to it; counted up to ``MAX_COUNTED``."""
    source: str | None
    """The file as it was published, where it was asked for."""


MAX_COUNTED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What became of a manifest."""

    version: NumberedVersion
    created: bool
    """False: this version was published before, with the same content."""
    warnings: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Retired:
    version: NumberedVersion
    changed: bool
    """False: it was retired before."""
    holds: str | None
    """The version that new sessions are bound to from now on; None: of this atlas none holds."""
    agents: list[str]
    """The agents that name the atlas and take no new work until a version holds: at most a hundred, by slug."""


def _storable(text: str) -> str:
    try:
        return check_text(text, "manifest")
    except InvalidInput as error:
        raise PydanticCustomError("unstorable_text", "{reason}", {"reason": error.message}) from None


@draft(config=DRAFT, frozen=True, kw_only=True)
class AtlasFile:
    """A manifest that a steward publishes."""

    manifest: Annotated[
        str, StringConstraints(min_length=1, max_length=MAX_ATLAS_BYTES), AfterValidator(_storable)
    ]
    """YAML or JSON."""
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")] = FILE_NAME
    """What faults in it are named after."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldChange:
    field: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasChange:
    change: Literal["added", "removed", "changed"]
    kind: Literal["atlas", "gate", "question", "context", "capability", "policy", "action"]
    id: str
    """As the atlas names it; of a question `gate/question`."""
    fields: list[FieldChange]
    """Of a change: what became another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasDiff:
    atlas_id: str
    before: str
    """A version."""
    after: str
    added: int
    removed: int
    changed: int
    changes: list[AtlasChange]
    """In the order of the kinds and of the ids, the first ``MAX_CHANGES`` of them."""
