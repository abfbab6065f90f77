-- Atlases and sessions: binding one to the other, and keeping what gates remember.

-- Every job brings the atlases of its agent's version to its session, in the newest versions that are not retired. What a
-- session is bound to already stays as it is. Several are merged, and one that allows everything would allow what the others leave
-- out: what the agent names is not put beside what a caller chose.
create or replace function job_binds() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
declare
  wanted jsonb;
  chosen text;
begin
  select v.skill_config -> 'atlases' into wanted
  from agent_version v
  where v.org_id = new.org_id and v.agent_id = new.agent_id and v.version = new.agent_version;
  if wanted is not null and jsonb_typeof(wanted) = 'array' and wanted <> '[]' then
    select b.atlas_id into chosen from session_atlas b
    where b.org_id = new.org_id and b.session_id = new.session_id and b.by_caller and not wanted ? b.atlas_id
    order by b.atlas_id limit 1;
    if chosen is not null then
      raise exception using errcode = 'CX403', detail = 'atlas_addition_refused',
        message = format('A caller bound this session to the atlas %s, which its agent does not name; the agent is governed by'
          ' others by now, and they are not put beside it.', chosen),
        hint = 'Open a new session: it is governed by the atlases of the agent. A conversation is ended with'
          ' `cortex session terminate` first.';
    end if;
    perform bind_atlases(new.org_id, new.session_id, array(select jsonb_array_elements_text(wanted)));
  end if;
  return new;
end
$$;

-- p_by_caller: somebody who writes no atlases names them.
create or replace function bind_atlases(p_org uuid, p_session uuid, p_atlases text[], p_by_caller boolean default false)
  returns void language plpgsql set search_path = public, pg_temp as $$
declare
  wanted text;
  newest record;
begin
  -- In one order, so that nobody waits for somebody who waits for them.
  for wanted in select distinct w from unnest(p_atlases) w order by w loop
    continue when exists (
      select from session_atlas b where b.org_id = p_org and b.session_id = p_session and b.atlas_id = wanted);
    select a.version, a.digest into newest
    from atlas_version a
    where a.org_id = p_org and a.atlas_id = wanted and a.retired_at is null
    order by a.number desc limit 1;
    if newest.version is null then
      raise exception using errcode = 'CX409', detail = 'atlas_missing',
        message = format('No version of the atlas %s holds, and this session must be bound to one.', wanted),
        hint = 'Publish one with `cortex atlas publish`, or take the atlas out of the agent''s `atlases`.';
    end if;
    insert into session_atlas (org_id, session_id, atlas_id, version, digest, message_seq, by_caller, bound_at)
    values (p_org, p_session, wanted, newest.version, newest.digest, ungoverned_until(p_org, p_session), p_by_caller,
      plane_now()) on conflict do nothing;
  end loop;
end
$$;

-- The last message before a session is bound now. What an open job was made for is still to be worked on: that comes after it.
create or replace function ungoverned_until(p_org uuid, p_session uuid) returns bigint
  language sql stable set search_path = public, pg_temp as $$
  select least(h.message_seq, (
    select (j.payload ->> 'message_seq')::bigint - 1 from job j
    where j.org_id = p_org and j.session_id = p_session and j.kind = 'conversation'
      and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED')))
  from session_head h where h.org_id = p_org and h.session_id = p_session
$$;

create or replace trigger job_binds after insert on job for each row execute function job_binds();

-- Under the lock of the session's job. p_gates: the revision that was read (0: there was none) and the new state; where calls
-- are sent, the `minutes` that count them and the number of `atlases` that let them through (see require_atlases); and the
-- `notices` that stewards get. Both belong to the write, and go with it. Whatever is sent was judged by what is there: where it
-- changes nothing, the revision is compared and the row stays as it is.
create or replace function record_gates(p_org uuid, p_session uuid, p_gates jsonb, p_now timestamptz) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  read_at bigint := (p_gates ->> 'revision')::bigint;
begin
  -- First: some writes lock it before anything else, and nobody may wait for somebody who waits for them.
  if p_gates ? 'state' then
    update session_gates g set revision = g.revision + 1, state = p_gates -> 'state', updated_at = p_now
    where g.org_id = p_org and g.session_id = p_session and g.revision = read_at;
    if not found and read_at = 0 then
      insert into session_gates as g (org_id, session_id, revision, state, updated_at)
      values (p_org, p_session, 1, p_gates -> 'state', p_now)
      on conflict (org_id, session_id) do update set revision = 1, state = excluded.state, updated_at = p_now
      where g.revision = 0;
    end if;
    if not found then
      raise exception using errcode = 'CX409', detail = 'gates_changed',
        message = 'The gates of this session changed since they were read.', hint = 'They are read again.';
    end if;
  elsif p_gates ? 'atlases' and read_at is distinct from coalesce(
      (select g.revision from session_gates g where g.org_id = p_org and g.session_id = p_session), 0) then
    raise exception using errcode = 'CX409', detail = 'gates_changed',
      message = 'The gates of this session changed since they were read.', hint = 'They are read again.';
  end if;
  if p_gates ? 'minutes' then
    perform count_atlas_minute(p_org, p_gates -> 'minutes', p_now);
  end if;
  if p_gates ? 'notices' then
    perform notify_stewards(p_org, p_session, p_gates -> 'notices', p_now);
  end if;
end
$$;

-- For a write that locks the head of the session early: whatever its gates remember is locked before that, as everywhere. Where
-- nothing is remembered yet, an empty row of revision 0 stands for it.
create or replace function lock_gates(p_org uuid, p_session uuid, p_now timestamptz) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform from session_gates g where g.org_id = p_org and g.session_id = p_session for no key update;
  if not found then
    insert into session_gates (org_id, session_id, revision, state, updated_at)
    values (p_org, p_session, 0, '{}', p_now) on conflict do nothing;
    perform from session_gates g where g.org_id = p_org and g.session_id = p_session for no key update;
  end if;
end
$$;

-- Atlases are only ever added to a session: whoever lets something run there must have looked at all of them. p_atlases: at how
-- many; null is none.
create or replace function require_atlases(p_org uuid, p_session uuid, p_atlases integer) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  if (select count(*) from session_atlas b where b.org_id = p_org and b.session_id = p_session)
      <> coalesce(p_atlases, 0) then
    raise exception using errcode = 'CX409', detail = 'gates_changed',
      message = 'This session was bound to another atlas since its gates were read.', hint = 'They are read again.';
  end if;
end
$$;

-- What a session is bound to, since which message, and what its gates remember; null where it is bound to nothing.
create or replace function session_bound(p_org uuid, p_session uuid) returns jsonb
  language sql stable set search_path = public, pg_temp as $$
  select case when count(*) > 0 then jsonb_build_object(
    'atlases', jsonb_agg(jsonb_build_object('atlas_id', b.atlas_id, 'version', b.version, 'digest', b.digest)
      order by b.atlas_id),
    'since', min(b.message_seq),
    'revision', coalesce((select g.revision from session_gates g where g.org_id = p_org and g.session_id = p_session), 0),
    'state', (select g.state from session_gates g where g.org_id = p_org and g.session_id = p_session)) end
  from session_atlas b where b.org_id = p_org and b.session_id = p_session
$$;
