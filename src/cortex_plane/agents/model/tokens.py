"""How many tokens something has, roughly: the same guess for every provider, made without one.

Three and a half characters of ASCII make a token, and every other character makes one of its own. That is a little
more than most providers count for prose, and about what they count for JSON and code: a window that is measured so
does not run over.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from cortex_plane.agents.model.models import AssistantTurn, CallRequest, ToolSpec, ToolTurn, Turn, UserTurn

TURN = 4
"""What a turn costs beside its words: its role, its beginning and its end."""
CALL = 16
"""What a call or a result costs beside its name and content: its id."""


def of_text(text: str) -> int:
    if text.isascii():
        return (2 * len(text) + 6) // 7
    others = len(text) - len(text.encode("ascii", "ignore"))
    return (2 * (len(text) - others) + 6) // 7 + others


def of_turn(turn: Turn) -> int:
    match turn:
        case UserTurn():
            return TURN + of_text(turn.text)
        case AssistantTurn():
            return TURN + of_text(turn.text or "") + sum(map(_of_call, turn.calls))
        case ToolTurn():
            results = turn.results
            return TURN + sum(CALL + of_text(result.name) + of_text(result.content) for result in results)


def of_tools(tools: Sequence[ToolSpec]) -> int:
    return sum(
        CALL + of_text(tool.name) + of_text(tool.description) + of_text(arguments_text(tool.parameters))
        for tool in tools
    )


def arguments_text(arguments: object) -> str:
    """Arguments as they are sent: an object as JSON, a text as it is."""
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _of_call(call: CallRequest) -> int:
    return CALL + of_text(call.name) + of_text(arguments_text(call.arguments))
