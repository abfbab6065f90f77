"""Calls: authorized, intended, settled."""
