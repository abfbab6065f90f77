"""What the plane can do: one function is one verb is one transaction, the same for every door."""
