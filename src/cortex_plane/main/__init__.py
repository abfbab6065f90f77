"""The composition root: puts the parts together, and holds `cortex up`."""
