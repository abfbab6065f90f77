-- Gathers statistics of tables that have grown since they were gathered. Autovacuum does too, but looks once a minute, and until then the
-- planner takes any index that begins with the org: a new plane would read all rows of a table to find one by its id. Owned by the
-- owner of the tables, because only that role may analyze them; it reads and writes no row. Returns how many tables it analyzed.
create or replace function analyze_grown_tables() returns integer
  language plpgsql security definer set search_path = public, pg_temp set lock_timeout = '100ms' as $$
declare
  grown record;
  analyzed integer := 0;
begin
  if not pg_try_advisory_xact_lock(hashtextextended('analyze_grown_tables', 0)) then
    return 0;
  end if;
  for grown in
    select s.relid::regclass as name from pg_stat_user_tables s join pg_class c on c.oid = s.relid
    where s.schemaname = 'public' and pg_has_role(c.relowner, 'usage')
      and s.n_live_tup between 50 and 100000 and s.n_live_tup > 3 * greatest(c.reltuples, 0)
  loop
    begin
      execute format('analyze %s', grown.name);
      analyzed := analyzed + 1;
    exception when lock_not_available then
      null; -- Somebody changes or vacuums the table; the next look comes soon.
    end;
  end loop;
  return analyzed;
end
$$;
revoke all on function analyze_grown_tables() from public;
grant execute on function analyze_grown_tables() to cortex_app;
