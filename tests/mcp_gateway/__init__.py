"""The MCP gateway, with the clients of the `mcp` package in front of it."""
