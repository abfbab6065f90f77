"""Slack, by its Web API, events and interactivity."""
