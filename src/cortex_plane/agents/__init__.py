"""Agents and their versions, tools, models and scripts."""
