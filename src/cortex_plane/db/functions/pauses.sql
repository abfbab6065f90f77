-- What readers are told of a pause. A job that runs is told of with `pause_pending`; `session_paused` comes once, with the write after
-- which nobody runs it any more.

-- The data of a pause event: what was asked, the checkpoint that the job goes on from, and since when it holds.
create or replace function pause_data(p_pause jsonb, p_checkpoint jsonb, p_at timestamptz) returns jsonb
  language sql immutable parallel safe
  return jsonb_strip_nulls(coalesce(p_pause, '{}') || jsonb_build_object('checkpoint_key', checkpoint_key(p_checkpoint))
    || case when p_at is null then '{}' else jsonb_build_object('paused_at', p_at) end)
    - case when p_pause ? 'paused_at' or p_at is not null then 'hold_by' else '' end;

-- The events of a write after which nobody runs a job, with its pauses: that of an attempt that stopped by itself (its event is among
-- p_data), and that which somebody asked for (p_pause) while it ran. Where it stopped for both, one event says so. An attempt that
-- stopped for a hold that was lifted meanwhile is not paused. `pause` is what the job keeps of it.
create or replace function pause_events(
  p_types text[], p_data jsonb[], p_status text, p_holds text[], p_pause jsonb, p_checkpoint jsonb, p_at timestamptz,
  out types text[], out data jsonb[], out pause jsonb)
  language plpgsql immutable set search_path = public, pg_temp as $$
declare
  is_over constant boolean := p_status not in ('PAUSED', 'WAITING_FOR_APPROVAL', 'SLEEPING', 'RETRY');
  asked jsonb := case when p_pause ->> 'paused_at' is null then p_pause - 'hold_by' end;
begin
  types := '{}';
  data := '{}';
  for i in 1 .. coalesce(cardinality(p_types), 0) loop
    continue when p_types[i] = 'session_paused' and is_over;
    types := types || p_types[i];
    if p_types[i] <> 'session_paused' then
      data := data || p_data[i];
    elsif p_data[i] ->> 'pause_source' = 'approval' then
      data := data || pause_data(p_data[i], p_checkpoint, p_at);
    else
      pause := p_data[i] || coalesce(asked, '{}') || jsonb_build_object('paused_at', p_at);
      data := data || pause_data(pause, p_checkpoint, p_at);
    end if;
  end loop;
  if pause is null and p_holds <> '{}' and not is_over and (asked is not null or p_pause is null) then
    pause := coalesce(asked, '{"pause_source": "operator"}') || jsonb_build_object('paused_at', p_at);
    types := types || 'session_paused'::text;
    data := data || pause_data(pause, p_checkpoint, p_at);
  end if;
  pause := coalesce(pause, p_pause);
end
$$;

-- What the agent of a session does: TERMINATED, SUSPENDED while it is held or an open job of it waits for people and none runs, ERROR
-- where its last job failed, INITIALIZING before anything was asked of it, and ACTIVE otherwise. By its last jobs: a session may have
-- thousands.
create or replace function runtime_status(s session) returns text
  language sql stable set search_path = public, pg_temp as $$
  select case when s.status = 'TERMINATED' then 'TERMINATED'
    when s.held_at is not null then 'SUSPENDED'
    when s.status = 'CREATED' then 'INITIALIZING'
    else coalesce((
      select case
        when bool_or(j.open and not j.suspended) then 'ACTIVE'
        when bool_or(j.suspended) then 'SUSPENDED'
        when (array_agg(j.status order by j.created_at desc, j.id desc))[1] = 'FAILED' then 'ERROR'
        else 'ACTIVE' end
      from (
        select k.id, k.created_at, k.status, k.status not in ('COMPLETED', 'FAILED', 'CANCELLED') as open,
          k.status in ('WAITING_FOR_APPROVAL', 'PAUSED') or (k.holds <> '{}' and k.worker_id is null) as suspended
        from job k where k.org_id = s.org_id and k.session_id = s.id
        order by k.created_at desc, k.id desc limit 20) j), 'ACTIVE') end
$$;
