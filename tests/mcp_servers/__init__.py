"""MCP servers that tests run: real ones from the registry, and one that misbehaves as it is told."""
