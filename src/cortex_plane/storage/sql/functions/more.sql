-- What a write of an attempt may hold besides the rows that every step has. Each key of p_more belongs to one noun, whose
-- function writes its rows; they run under the job's lock and before the session's head is locked.

-- What must be locked before the job is.
create or replace function lock_more(p_org uuid, p_more jsonb) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  null;
end
$$;

create or replace function record_more(p_org uuid, p_job uuid, p_session uuid, p_more jsonb, p_now timestamptz)
  returns void language plpgsql set search_path = public, pg_temp as $$
begin
  null;
end
$$;
