"""Files that stewards write, read into domain values."""
