"""Values and state tables."""
