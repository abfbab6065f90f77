insert into schema_migration (name, kind, checksum) values ($1, $2, $3)
on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()
