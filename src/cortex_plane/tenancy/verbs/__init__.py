"""One function is one transaction."""
