"""What runs agents: models, tools, and the worker that brings them together."""
