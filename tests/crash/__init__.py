"""The crash harness: workers that are killed at every point they pass, and the proof that nothing was lost or repeated."""
