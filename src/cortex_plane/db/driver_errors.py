"""The driver's errors, mapped to ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import asyncpg

from cortex_plane.kernel.errors import (
    AlreadyExists,
    Conflict,
    CortexError,
    Forbidden,
    InUse,
    InvalidInput,
    NotFound,
    Stale,
    Unauthenticated,
    Unavailable,
)

# The states that our own SQL raises; `detail` carries the code.
_RAISED: dict[str, type[CortexError]] = {
    "CX401": Unauthenticated,
    "CX403": Forbidden,
    "CX404": NotFound,
    "CX409": Conflict,
    "CX412": Stale,
}

# What a broken unique constraint means to a person.
_TAKEN = {
    "uq_org_slug": "An org with this slug exists.",
    "uq_team_slug": "A team with this slug exists in the org.",
    "uq_agent_name": "An agent with this name exists in the org.",
    "uq_agent_slug": "An agent with this slug exists in the org.",
    "uq_channel_connection_name": "A connection of this type and name exists in the org.",
}

# Out of disk, memory or connections; shutting down; a read-only standby; a lock or a transaction that took too long.
_NOT_NOW = ("53", "57", "58", "25006", "25P03", "55P03")

UNREACHABLE = (
    asyncpg.InvalidCachedStatementError,  # prepared before a migration; the next try prepares it anew
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what the driver says when it has not yet noticed that its server is gone
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


def translate(error: BaseException) -> CortexError | None:
    """The error of ours that says the same, or None for a defect that must stay loud."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in _RAISED:
        kind = _RAISED[error.sqlstate]
        return kind(str(error.args[0]), code=error.detail, hint=error.hint)
    match error:
        case asyncpg.UniqueViolationError():
            return AlreadyExists(_TAKEN.get(error.constraint_name, "This already exists."))
        case asyncpg.ForeignKeyViolationError():
            return InUse("Something else still refers to it, or it refers to something that is gone.")
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError():
            return Conflict("Two requests got in each other's way.", code="retry", hint="Send it again.")
        case asyncpg.CheckViolationError() | asyncpg.DataError():
            return InvalidInput("A value is outside of what can be stored.")
        case TimeoutError() | asyncpg.QueryCanceledError():
            return Unavailable(
                "The database took too long, or all connections to it are in use.", code="busy"
            )
        case _ if isinstance(error, asyncpg.PostgresError) and str(error.sqlstate).startswith(_NOT_NOW):
            return Unavailable(f"The database cannot do this now: {error}.")
        case _ if isinstance(error, UNREACHABLE):
            return Unavailable("The database cannot be reached.")
    return None


@contextlib.contextmanager
def border() -> Iterator[None]:
    try:
        yield
    except (asyncpg.PostgresError, TimeoutError, *UNREACHABLE) as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
