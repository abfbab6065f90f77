"""Workers without a database: what runs on their side, and what stands for them in the plane."""
