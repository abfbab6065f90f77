"""Commands that need more than the API: they run the plane, or look into its database."""
