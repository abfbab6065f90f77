-- How many calls run under an atlas in a minute, over all sessions of the org.

-- p_atlases: by atlas, the limit, or {"limit": …, "calls": …} where several calls are sent at once. In one order, so that nobody
-- waits for somebody who waits for them. Over the limit nothing of the write happens.
create or replace function count_atlas_minute(p_org uuid, p_atlases jsonb, p_now timestamptz) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  -- In UTC, whatever zone the connection is in: some are not whole minutes away from others.
  this_minute timestamptz := date_trunc('minute', p_now, 'UTC');
  one record;
  counted integer;
begin
  for one in
    select e.key as atlas_id,
      case jsonb_typeof(e.value) when 'object' then (e.value ->> 'limit')::integer else (e.value #>> '{}')::integer end as most,
      case jsonb_typeof(e.value) when 'object' then coalesce((e.value ->> 'calls')::integer, 1) else 1 end as calls
    from jsonb_each(p_atlases) e order by e.key
  loop
    continue when one.calls <= 0;
    insert into atlas_minute as m (org_id, atlas_id, minute, calls) values (p_org, one.atlas_id, this_minute, one.calls)
    on conflict (org_id, atlas_id, minute) do update set calls = m.calls + excluded.calls
    returning m.calls into counted;
    if counted > one.most then
      raise exception using errcode = 'CX409', detail = 'atlas_rate_limited',
        message = format('The atlas %s lets %s calls run in a minute, and they ran.', one.atlas_id, one.most),
        hint = format('Try again after %s.',
          to_char((this_minute + interval '1 minute') at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
    end if;
  end loop;
end
$$;

-- Forgets minutes that were over for longer than p_older, at most p_limit of them; returns how many.
create or replace function forget_atlas_minutes(p_older interval, p_limit integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  forgotten integer;
begin
  delete from atlas_minute m
  where (m.org_id, m.atlas_id, m.minute) in (
    select o.org_id, o.atlas_id, o.minute from atlas_minute o
    where o.minute < (select plane_now()) - p_older order by o.minute limit p_limit);
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;

call pg_temp.give_functions('cortex_scheduler', 'forget_atlas_minutes(interval, integer)');
