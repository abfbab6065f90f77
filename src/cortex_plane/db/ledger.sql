-- Which migrations and functions this database has. Not a tenant table: it holds no tenant's data.
create table if not exists schema_migration (
  name        text primary key,
  kind        text not null check (kind in ('migration', 'function')),
  checksum    text not null,
  applied_at  timestamptz not null default clock_timestamp()
);
grant select on schema_migration to cortex_app;
