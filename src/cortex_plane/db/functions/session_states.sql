-- The state of a run ends with its session, whoever ends it.
create or replace function session_over() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  delete from session_state where org_id = new.org_id and session_id = new.id;
  return null;
end
$$;

create or replace trigger session_over after update of status on session
  for each row when (new.status = 'TERMINATED')
  execute function session_over();
