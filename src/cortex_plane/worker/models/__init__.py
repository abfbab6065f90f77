"""The backends that answer for language models."""
