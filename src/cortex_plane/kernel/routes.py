"""Routes as declarations: what the API takes and answers, stated once.

Each noun declares its routes in ``<noun>/routes.py``. ``http/routes`` binds each route to its verb, the OpenAPI document is
generated from the declarations, the client sends its requests by them, and commands print the columns that they name.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model

from cortex_plane.kernel.fields import DRAFT, AtlasId, Ref

T = TypeVar("T")

SMALL_BODY_BYTES = 32 * 1024
"""Enough for a few names and a note of 2,000 characters in any encoding."""
AtlasPath = Annotated[AtlasId, Field(description="As its manifest names it.")]
PATH_TYPES: Mapping[str, Any] = {"agent": Ref, "team": Ref, "atlas_id": AtlasPath}
"""Values of paths that are no UUIDs, by name."""
ERRORS = (400, 401, 403, 404, 409, 412, 413, 422, 429, 503)
QUERY = ConfigDict(**DRAFT, frozen=True)


class Query(BaseModel):
    """The query parameters of a route."""

    model_config = QUERY


class ListQuery(BaseModel):
    """Where a page starts and how long it is."""

    model_config = QUERY

    cursor: Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[A-Za-z0-9_-]+$")] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


@cache
def filters(**kinds: Any) -> type[ListQuery]:
    """The query of a list with filters, by name. All are optional; a bool is false by default."""
    fields: dict[str, Any] = {
        name: (bool, False) if kind is bool else (kind | None, None) for name, kind in kinds.items()
    }
    return create_model("_".join(kinds), __base__=ListQuery, **fields)


@dataclass(frozen=True, eq=False)
class Route(Generic[T]):
    """One route. Its constant names its operation, the string below describes it. Its permission is that of its verb."""

    address: str
    """Method and path: ``POST /v1/teams``."""
    output: type[T]
    _: KW_ONLY
    body: Any = None
    query: Any = None
    path_types: Mapping[str, Any] = field(default_factory=dict)
    """Of the values in the path: UUIDs, if neither this nor `PATH_TYPES` says otherwise."""
    status: int = 200
    status_again: str | None = None
    """When the status is 200 although `status` says otherwise."""
    status_waits: str | None = None
    """When the status is 202, because what was asked for waits for a person."""
    once: bool = False
    """Takes an `Idempotency-Key`."""
    revision: bool = False
    """Takes an `If-Match`."""
    stream: bool = False
    """Answers with server-sent events, or with one page of them. Takes a `Last-Event-ID`."""
    media_type: str | None = None
    """Of an answer that is text instead of JSON."""
    answer: str = "Successful Response"
    max_body: int = SMALL_BODY_BYTES
    needs_key: bool = True
    errors: tuple[int, ...] = ERRORS
    tag: str = ""
    """The section of the document; by default the first word of the path."""
    also_at: str | None = None
    """Another prefix in the place of ``/v1``, which a specification names. The document does not list it."""
    in_document: bool = True

    method: str = field(init=False)
    path: str = field(init=False)
    path_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        method, _, path = self.address.partition(" ")
        set_field = object.__setattr__
        set_field(self, "method", method)
        set_field(self, "path", path)
        names = tuple(re.findall(r"{(\w+)}", path))
        set_field(self, "path_names", names)
        set_field(self, "path_types", {name: PATH_TYPES.get(name, UUID) for name in names} | dict(self.path_types))
        if not self.tag:
            set_field(self, "tag", path.removeprefix("/v1").split("/")[1].replace("-", " "))

    def path_to(self, *values: object) -> str:
        """The path with these values in it."""
        parts = [str(value) if isinstance(value, UUID) else quote(str(value), safe="") for value in values]
        return self.path.format(**dict(zip(self.path_names, parts, strict=True)))


@dataclass(frozen=True, eq=False)
class ListRoute(Route[T]):
    """Answers with a list: `items` of the output type, and the cursor of the next page."""

    query: Any = ListQuery
    """None: the list is short by nature, and comes in one page."""
    columns: str = ""
    """The fields that a table of it shows, with spaces between."""


Endpoint = Callable[..., Awaitable[Any]]
"""Takes a request, and the values of its path by name."""
E = TypeVar("E", bound=Endpoint)


@dataclass(frozen=True, slots=True)
class PageRoute:
    path: str
    methods: Sequence[str]
    endpoint: Endpoint
    max_body: int = SMALL_BODY_BYTES


class PageRoutes(list[PageRoute]):
    """The pages of one module. They are for people, and not in the document."""

    def add(self, path: str, endpoint: Endpoint, *methods: str, max_body: int = SMALL_BODY_BYTES) -> None:
        self.append(PageRoute(path, methods, endpoint, max_body))

    def at(self, path: str, *methods: str) -> Callable[[E], E]:
        def decorate(endpoint: E) -> E:
            self.add(path, endpoint, *methods)
            return endpoint

        return decorate
