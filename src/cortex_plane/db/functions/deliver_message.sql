drop function if exists deliver_message(uuid, session, text, uuid, uuid, uuid, uuid, text[], bytea[], bytea, bytea);

-- Shared by every way a message enters: put it into an open session and see to it that a job will read it.
-- The open job is looked for under the head's lock: a job that finishes takes the same lock to check that it has
-- read everything, so no message falls between the two. p_chat: where its answer goes; null: to nobody in particular.
create or replace function deliver_message(
  p_org uuid, p_session session, p_text text, p_author uuid, p_mapping uuid, p_key uuid, p_job uuid,
  actions text[], bodies bytea[], job_body bytea, active_body bytea, p_chat uuid,
  out message_seq bigint, out job_id uuid, out created_job boolean)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  event_types text[] := array['message'];
  event_jobs uuid[];
  event_data jsonb[];
  the_chat uuid;
begin
  if p_session.status <> 'ACTIVE' then
    update session s set status = 'ACTIVE', revision = s.revision + 1 where s.org_id = p_org and s.id = p_session.id;
    actions := 'session_activated'::text || actions;
    bodies := active_body || bodies;
  end if;
  select h.message_seq + 1, h.chat_id into strict message_seq, the_chat
  from session_head h where h.org_id = p_org and h.session_id = p_session.id for update;
  if the_chat is distinct from p_chat then -- what the agent says goes to where its person wrote last
    update session_head h set chat_id = p_chat where h.org_id = p_org and h.session_id = p_session.id;
  end if;
  select j.id into job_id from job j
  where j.org_id = p_org and j.session_id = p_session.id and j.kind = 'conversation'
    and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED');
  created_job := job_id is null;
  if created_job then
    job_id := p_job;
    insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, app, holds, held_at, runnable_at,
      caused_by)
    select p_org, p_job, p_session.id, a.id, a.config_version, 'conversation',
      jsonb_build_object('message_seq', message_seq), coalesce(v.skill_config ->> 'app', 'plane'),
      case when p_session.held_at is null then '{}' else array['session'] end, p_session.held_at,
      case when p_session.held_at is null then plane_now() end, coalesce(p_author, p_session.user_account_id)
    from agent a
    join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
    where a.org_id = p_org and a.id = p_session.agent_id;
    actions := actions || 'job_created'::text;
    bodies := bodies || job_body;
    event_types := event_types || 'status'::text;
  end if;
  insert into message (org_id, session_id, seq, role, text, author_id, channel_mapping_id, key_id)
  values (p_org, p_session.id, message_seq, 'user', p_text, p_author, p_mapping, p_key);
  event_jobs := array[job_id, job_id];
  event_data := array[
    jsonb_build_object('seq', message_seq, 'role', 'user'), jsonb_build_object('status', 'PENDING')];
  perform session_append(p_org, p_session.id, 1, event_types, event_jobs, event_data, actions, bodies,
    -- The message, and the job that was made for it, are the last ones.
    array_fill(null::uuid, array[cardinality(actions) - 1 - created_job::integer])
      || array_fill(job_id, array[1 + created_job::integer]));
end
$$;

-- The name of whoever wrote a message: a person, or a program.
create or replace function message_author(m message) returns text
  language sql stable set search_path = public, pg_temp as $$
  select coalesce(
    (select u.display_name from user_account u where u.org_id = m.org_id and u.id = m.author_id),
    (select k.name from api_key k where k.org_id = m.org_id and k.id = m.key_id))
$$;

-- Words of an operator for the model of one job: a message that the job reads at its next boundary. Null where no model reads it: the
-- agent is a function, or runs elsewhere.
create or replace function add_operator_words(p_org uuid, p_job uuid, p_text text, p_author uuid, p_key uuid) returns bigint
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_session uuid;
  number bigint;
  data jsonb;
begin
  select j.session_id into the_session
  from job j join agent_version v on v.org_id = j.org_id and v.agent_id = j.agent_id and v.version = j.agent_version
  where j.org_id = p_org and j.id = p_job and j.kind <> 'external' and not v.skill_config ? 'run';
  if not found then
    return null;
  end if;
  select h.message_seq + 1 into strict number from session_head h
  where h.org_id = p_org and h.session_id = the_session for update;
  insert into message (org_id, session_id, seq, role, text, author_id, key_id, job_id)
  values (p_org, the_session, number, 'system', p_text, p_author, p_key, p_job);
  data := jsonb_build_object('seq', number, 'role', 'system');
  perform session_append(p_org, the_session, 1, array['message'], array[p_job], array[data], '{}', '{}');
  return number;
end
$$;
