"""The command line: one module per noun, over the typed client."""
