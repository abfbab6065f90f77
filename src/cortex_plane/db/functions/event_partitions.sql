-- Makes the event partitions of this month and the next ones. Owned by the owner of `event`, because only that
-- role may add partitions; it reads and writes no row. A partition gets its own row-level security and no grants:
-- read directly it would otherwise bypass the policies of its parent. A month whose rows already fell into the
-- default partition is left there.
create or replace function prepare_event_partitions(months_ahead integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp set lock_timeout = '2s' as $$
declare
  first_day date := date_trunc('month', plane_now() at time zone 'utc')::date;
  last_day date;
  partition_name text;
  made integer := 0;
begin
  perform pg_advisory_xact_lock(hashtextextended('prepare_event_partitions', 0));
  for i in 0 .. least(months_ahead, 24) loop
    partition_name := 'event_' || to_char(first_day, 'YYYY_MM');
    last_day := (first_day + interval '1 month')::date;
    if to_regclass(partition_name) is null then
      begin
        execute format('create table %I partition of event for values from (%L) to (%L)',
          partition_name, first_day::timestamp at time zone 'utc', last_day::timestamp at time zone 'utc');
        execute format('alter table %I enable row level security', partition_name);
        execute format('alter table %I force row level security', partition_name);
        execute format($policy$
          create policy tenant on %I
            using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
            with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
        $policy$, partition_name);
        made := made + 1;
      exception when check_violation or lock_not_available then
        -- Whoever reads all events now (a backup) must not make every writer wait: the next start tries again.
        null;
      end;
    end if;
    first_day := last_day;
  end loop;
  return made;
end
$$;
revoke all on function prepare_event_partitions(integer) from public;
grant execute on function prepare_event_partitions(integer) to cortex_app;
