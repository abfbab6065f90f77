"""Tools of MCP servers: programs beside the worker, or services elsewhere, that offer tools by themselves.

Servers are declared in the worker's code and never by a tenant: a command line from a tenant would be remote execution.
Importing this stays cheap; the ``mcp`` package is imported when a worker connects.
"""
