-- The session life cycle, as in sessions/model/sessions.py; a test compares the two for every pair of states.

create or replace function session_may_move(old_status text, new_status text) returns boolean
  language sql immutable parallel safe
  return case old_status
    when 'CREATED' then new_status in ('ACTIVE', 'TERMINATED')
    when 'ACTIVE' then new_status in ('PAUSED', 'TERMINATED')
    when 'PAUSED' then new_status in ('ACTIVE', 'TERMINATED')
    else false
  end;

create or replace function session_guard() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  if tg_op = 'UPDATE' then
    if old.status = new.status then
      return new;
    end if;
    if not session_may_move(old.status, new.status) then
      raise exception using errcode = 'CX409', detail = 'illegal_transition',
        message = format('A session cannot go from %s to %s.', old.status, new.status),
        hint = 'Read the session again; its status may have changed.';
    end if;
    new.updated_at := plane_now();
    new.paused_at := case when new.status = 'PAUSED' then new.updated_at end;
  end if;
  if new.end_reason is not null and new.status <> 'TERMINATED' then
    return new;  -- a scheduler ends it, and looks at its own time
  end if;
  -- A conversation may go idle while it is active. Activity is not written here: a scheduler looks, and looks again.
  new.idle_check_at := case when new.status = 'ACTIVE' and new.kind = 'conversation' then (
    select new.updated_at + make_interval(secs => coalesce(
      (v.resource_limits ->> 'idle_timeout_seconds')::double precision, 86400))
    from agent a join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
    where a.org_id = new.org_id and a.id = new.agent_id) end;
  return new;
end
$$;

create or replace trigger session_guard before insert or update of status on session
  for each row execute function session_guard();
