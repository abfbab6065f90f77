-- The session life cycle, as in domain/sessions.py; a test compares the two for every pair of states.

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
  if old.status = new.status then
    return new;
  end if;
  if not session_may_move(old.status, new.status) then
    raise exception using errcode = 'CX409', detail = 'illegal_transition',
      message = format('A session cannot go from %s to %s.', old.status, new.status),
      hint = 'Read the session again; its status may have changed.';
  end if;
  new.updated_at := plane_now();
  return new;
end
$$;

create or replace trigger session_guard before update of status on session
  for each row execute function session_guard();
