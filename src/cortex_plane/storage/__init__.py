"""The only package that knows SQL: a pool, migrations, and one module per noun over `sql/`."""
