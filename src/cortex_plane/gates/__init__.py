"""Atlases and gates."""
