"""The MCP gateway: a door for agents that speak MCP. It fronts MCP servers, and takes every call of a tool through the plane.

The gateway is a client of the plane's API, on a developer's machine (stdio) as well as on a server (HTTP): one implementation, one
pipeline, and commands of servers never run inside the plane. Importing this stays cheap; ``mcp`` is imported when a gateway runs.
"""
