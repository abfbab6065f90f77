"""Connections to MCP servers of others, for the worker and for the gateway: their declaration, transports, and life.

Servers are declared in code or in a file of the operator, and never by a tenant: a command line from a tenant would be remote execution.
Importing this stays cheap; the ``mcp`` package is imported when somebody connects.
"""
