"""REST over FastAPI."""
