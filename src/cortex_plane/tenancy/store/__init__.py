"""The SQL of this noun."""
