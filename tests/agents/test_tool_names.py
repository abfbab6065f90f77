"""Names of foreign tools become names of the plane: the same every time, and never one for two."""

from __future__ import annotations

import pytest

from cortex_plane.agents.model.tool_names import ToolNames, plane_name
from cortex_plane.agents.model.tools import MAX_NAME, is_tool_name
from cortex_plane.kernel.errors import InvalidInput

NAMES = {
    "Bash": "bash", "mcp__gw__refund": "mcp.gw.refund", "mcp__claude_ai_Linear__create-issue": "mcp.claude_ai_linear.create_issue",
    "createRefund": "create_refund", "HTTPServer2Go": "http_server2_go", "refunds.create": "refunds.create",
    "send_mail": "send_mail", "github/createIssue": "github.create_issue", "a::b": "a.b", "2fa": "tool_2fa",
    "mcp__gw__a__b": "mcp.gw.a_b", "mcp__gw": "mcp_gw", "mcp____x": "mcp_x", " weird  name! ": "weird_name",
}  # fmt: skip


@pytest.mark.proves("D.933")
def test_names_are_mapped_and_stay_what_they_are() -> None:
    assert {foreign: plane_name(foreign) for foreign in NAMES} == NAMES
    assert all(plane_name(name) == name for name in NAMES.values())
    prefixed = {name: plane_name(name, "claude") for name in ("Bash", "bash", "mcp__gw__refund", "refunds.create")}
    assert list(prefixed.values()) == ["claude.bash", "claude.bash", "mcp.gw.refund", "refunds.create"]
    # A server cannot be named so that its tools have the names of others.
    servers = [plane_name(f"mcp__{server}__read", "claude") for server in ("claude", "mcp", "mcp__claude", "Claude.")]
    assert all(name.startswith("mcp.") and name != plane_name("Read", "claude") for name in servers)


@pytest.mark.proves("D.933")
@pytest.mark.parametrize("pair", [("x" * 90, "x" * 91), ("возврат", "отказ"), ("", "!"), ("größe", "grüße")])
def test_what_cannot_be_a_name_gets_a_stable_end(pair: tuple[str, str]) -> None:
    one, two = (plane_name(name) for name in pair)
    assert one != two
    assert all(is_tool_name(name) and len(name) <= MAX_NAME for name in (one, two))
    assert plane_name(pair[0]) == one


@pytest.mark.proves("D.933")
def test_two_tools_of_one_declaration_do_not_share_a_name() -> None:
    with pytest.raises(InvalidInput) as error:
        ToolNames(["getUser", "Bash", "get_user"])
    assert error.value.code == "tool_names_collide"
    assert "`getUser` and `get_user`" in error.value.message
    names = ToolNames(["getUser", "get_user"], names={"get_user": "users.read"})
    assert [names.plane_name(name) for name in ("getUser", "get_user", "getUser")] == [
        "get_user",
        "users.read",
        "get_user",
    ]
    with pytest.raises(InvalidInput):
        names.plane_name("users.read")
    # What the program has wins over what was only seen in a call.
    names = ToolNames(["create_issue"])
    assert names.plane_name("create-refund") == "create_refund"
    names.declare(["createRefund"])
    assert names.plane_name("createRefund") == "create_refund"
    for seen in ("create-refund", "createIssue"):
        with pytest.raises(InvalidInput):
            names.plane_name(seen)
    with pytest.raises(InvalidInput):
        ToolNames(names={"x": "Not a name"})
