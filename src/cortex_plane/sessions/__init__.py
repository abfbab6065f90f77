"""Sessions, messages, memories and events."""
