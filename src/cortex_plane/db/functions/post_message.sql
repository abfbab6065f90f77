-- A message to a session that exists, from whoever may see it.
create or replace function post_message(
  p_org uuid, p_session uuid, p_sees uuid, p_text text, p_title text, p_author uuid, p_job uuid,
  p_message_body bytea, p_job_body bytea, p_active_body bytea, p_caller uuid, p_key text, p_fingerprint bytea)
  returns table (
    session_id uuid, message_seq bigint, job_id uuid, user_account_id uuid, created text[], replayed boolean)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  the_session session%rowtype;
  delivered record;
  earlier jsonb;
begin
  perform set_config('app.org_id', p_org::text, true);
  earlier := claim_once(p_org, p_caller, 'messages.post', p_key, p_fingerprint);
  if earlier is not null then
    return query select (earlier ->> 'session_id')::uuid, (earlier ->> 'message_seq')::bigint,
      (earlier ->> 'job_id')::uuid, (earlier ->> 'user_account_id')::uuid, '{}'::text[], true;
    return;
  end if;
  select * into the_session from session s
  where s.org_id = p_org and s.id = p_session and (p_sees is null or p_sees in (s.user_account_id, s.opened_by))
  for no key update;
  if not found then
    raise exception using errcode = 'CX404', detail = 'session_not_found', message = 'There is no such session.',
      hint = 'List them with `cortex session list`.';
  end if;
  if the_session.status = 'TERMINATED' then
    raise exception using errcode = 'CX409', detail = 'session_terminated', message = 'This session has ended.',
      hint = 'Open a new session.';
  end if;
  if the_session.kind = 'external' then
    raise exception using errcode = 'CX409', detail = 'external_session',
      message = 'The agent of this session runs elsewhere: nobody here reads messages to it.',
      hint = 'Open a session of another kind.';
  end if;
  if exists (
    select from agent a
    where a.org_id = p_org and a.id = the_session.agent_id and a.channel_permissions <> '{}'
      and not 'api' = any (a.channel_permissions)) then
    raise exception using errcode = 'CX403', detail = 'channel_not_permitted',
      message = 'This agent may not be reached over api.',
      hint = 'Add the channel to the agent''s channel_permissions, or use a permitted channel.';
  end if;
  if the_session.title is null and p_title <> '' then
    update session s set title = p_title, revision = s.revision + 1 where s.org_id = p_org and s.id = p_session;
  end if;
  delivered := deliver_message(
    p_org, the_session, p_text, p_author, null, case when p_author is null then p_caller end, p_job, array['message_received'], array[p_message_body],
    p_job_body, p_active_body, null);
  if exists (select from session_atlas b where b.org_id = p_org and b.session_id = p_session) then
    perform require_atlas_access(p_org, p_session, p_caller, p_author);
  end if;
  session_id := p_session;
  message_seq := delivered.message_seq;
  job_id := delivered.job_id;
  user_account_id := the_session.user_account_id;
  created := case when delivered.created_job then array['job'] else '{}' end;
  replayed := false;
  perform settle_once(p_org, p_caller, 'messages.post', p_key, jsonb_build_object(
    'session_id', session_id, 'message_seq', message_seq, 'job_id', job_id, 'user_account_id', user_account_id));
  return next;
end
$$;
