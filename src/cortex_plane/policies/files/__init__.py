"""Files that stewards write."""
