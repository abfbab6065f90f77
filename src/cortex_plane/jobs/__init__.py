"""Jobs, attempts, checkpoints, journals, signals and usage."""
