"""Deciding with the token of a message, without a key."""

from __future__ import annotations

import sys
from typing import Annotated, Any
from uuid import UUID

import typer

from cortex_plane.approvals.model.approvals import Choice, DecisionReceipt
from cortex_plane.cli.plane import run
from cortex_plane.kernel.errors import InvalidInput

ApprovalId = Annotated[UUID | None, typer.Argument(show_default=False)]
Token = Annotated[
    str | None,
    typer.Option(
        help="Instead of an id and a key: the token of a message, which decides what that message showed."
        " `-` reads it from standard input, so that no shell remembers it."
    ),
]


def named(approval_id: UUID | None) -> UUID:
    if approval_id is None:
        raise InvalidInput("Which one?", hint="Give the id of the approval, or `--token` with a token.")
    return approval_id


def decide(choice: Choice, token: str, reason: str | None, *others: Any) -> DecisionReceipt:
    """A token says which request and which version it decides, so none of the ``others`` may be given."""
    if any(each not in (None, False) for each in others):
        raise InvalidInput(
            "A token decides its own request, as its message showed it.",
            hint="Give `--token` with `--reason` at most; decide by id to name a version or to edit.",
        )
    given = (sys.stdin.readline() if token == "-" else token).strip()  # noqa: S105
    if not given:
        raise InvalidInput("There is no token.", hint="Copy it whole from the message.")
    return run(lambda plane: plane.approvals.decide_by_token(given, choice, reason=reason), without_key=True)
