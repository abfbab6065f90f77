"""The MCP server of the agents here: its tool acts in a file.

    python mcp_office.py

It ends with its input, as a server over stdio does.
"""

from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("office")


def pay(order: str, cents: int) -> str:
    with Path("bank.txt").open("a") as bank:
        bank.write(f"{cents} for {order}\n")
    return f"{cents} cents for {order} were paid back."


@server.tool()
def refund(order: str, cents: int) -> str:
    """Pay money back."""
    return pay(order, cents)


if __name__ == "__main__":
    server.run("stdio")
