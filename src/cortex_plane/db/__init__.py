"""PostgreSQL: pool, transactions, migrations, functions, the vault of secrets."""
