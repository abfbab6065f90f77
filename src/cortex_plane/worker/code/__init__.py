"""Agents written as code: an ordinary function whose operations are recorded, so that it goes on where it stopped."""
