drop function if exists ingest_message(uuid, uuid, uuid, text, text, text, jsonb, text, text, uuid, uuid, uuid, uuid, bytea, bytea,
  bytea, bytea, bytea, bytea, uuid, uuid, uuid, text, bytea);

-- A message from a channel: finds or makes the account, the mapping and the session, appends the message and
-- creates the job where none is open. One round trip, one commit. Ids and audit bodies of whatever may have to be
-- made come from the caller; those that are not needed are dropped. p_mac is that of the mapping that may have to be made. A sender
-- who has one is theirs only where the caller has checked its MAC: p_checked and p_checked_account say which one that was.
create or replace function ingest_message(
  p_org uuid, p_connection uuid, p_agent_id uuid, p_agent_slug text, p_external_user text, p_display_name text,
  p_metadata jsonb, p_text text, p_title text,
  p_account uuid, p_mapping uuid, p_session uuid, p_job uuid,
  p_account_body bytea, p_session_body bytea, p_message_body bytea, p_job_body bytea, p_active_body bytea,
  p_mac bytea, p_checked uuid, p_checked_account uuid, p_caller uuid, p_key text, p_fingerprint bytea, p_chat uuid)
  returns table (
    session_id uuid, message_seq bigint, job_id uuid, user_account_id uuid, created text[], replayed boolean)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  connection record;
  the_agent agent%rowtype;
  the_session session%rowtype;
  known_account uuid;
  known_mapping uuid;
  deactivated timestamptz;
  is_noted boolean;
  is_guest boolean := true;
  delivered record;
  earlier jsonb;
  actions text[] := '{}';
  bodies bytea[] := '{}';
begin
  perform set_config('app.org_id', p_org::text, true);
  created := '{}';

  if p_key is not null then
    earlier := claim_once(p_org, p_caller, 'messages.ingest', p_key, p_fingerprint);
    if earlier is not null then
      return query select (earlier ->> 'session_id')::uuid, (earlier ->> 'message_seq')::bigint,
        (earlier ->> 'job_id')::uuid, (earlier ->> 'user_account_id')::uuid, '{}'::text[], true;
      return;
    end if;
  end if;

  select c.channel_type, c.disabled_at, coalesce((o.settings ->> 'guests_may_chat')::boolean, true) as guests_may_chat,
    c.last_inbound_at > plane_now() - interval '1 minute' as is_noted
  into connection
  from channel_connection c join org o on o.id = c.org_id
  where c.org_id = p_org and c.id = p_connection;
  if not found then
    raise exception using errcode = 'CX404', detail = 'connection_not_found',
      message = 'There is no such connection.', hint = 'List them with `cortex connection list`.';
  end if;
  if connection.disabled_at is not null then
    raise exception using errcode = 'CX409', detail = 'connection_disabled',
      message = 'This connection is disabled.', hint = 'Enable it with `cortex connection enable`.';
  end if;
  if p_agent_id is not null then
    select * into the_agent from agent a where a.org_id = p_org and a.id = p_agent_id;
  else
    select * into the_agent from agent a where a.org_id = p_org and a.slug = p_agent_slug;
  end if;
  if not found then
    raise exception using errcode = 'CX404', detail = 'agent_not_found', message = 'There is no such agent.',
      hint = 'List them with `cortex agent list`.';
  end if;
  if cardinality(the_agent.channel_permissions) > 0
    and not connection.channel_type = any (the_agent.channel_permissions) then
    raise exception using errcode = 'CX403', detail = 'channel_not_permitted',
      message = format('This agent may not be reached over %s.', connection.channel_type),
      hint = 'Add the channel to the agent''s channel_permissions, or use a permitted channel.';
  end if;

  -- A person whom nobody invited is a guest, at the first contact and at every later one.
  select m.id, m.user_account_id, u.deactivated_at, u.roles = '{guest}', m.last_used_at > plane_now() - interval '1 hour'
  into known_mapping, known_account, deactivated, is_guest, is_noted
  from channel_mapping m join user_account u on u.org_id = m.org_id and u.id = m.user_account_id
  where m.org_id = p_org and m.connection_id = p_connection and m.channel_user_id = p_external_user
    and m.verified_at is not null;  -- what somebody only claims is not theirs
  perform require_checked(known_mapping, known_account, p_checked, p_checked_account);
  if coalesce(is_guest, true) and not connection.guests_may_chat then
    raise exception using errcode = 'CX403', detail = 'guests_not_allowed',
      message = 'This org does not let unknown people talk with its agents.',
      hint = 'An admin can allow it: `cortex org update --guests-may-chat`.';
  end if;
  if known_mapping is null then
    -- First contact. The lock makes concurrent first messages of one person take turns, and nobody else wait.
    perform pg_advisory_xact_lock(hashtextextended(p_connection::text || ':' || p_external_user, 0));
    select m.id, m.user_account_id into known_mapping, known_account from channel_mapping m
    where m.org_id = p_org and m.connection_id = p_connection and m.channel_user_id = p_external_user
      and m.verified_at is not null;
    perform require_checked(known_mapping, known_account, p_checked, p_checked_account);
    if known_mapping is null then
      insert into user_account (org_id, id, display_name, roles)
      values (p_org, p_account, p_display_name, '{guest}');
      insert into channel_mapping (
        org_id, id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, last_used_at,
        mac)
      values (p_org, p_mapping, p_connection, p_account, connection.channel_type, p_external_user, p_metadata,
        plane_now(), plane_now(), p_mac);
      is_noted := true;
      known_account := p_account;
      known_mapping := p_mapping;
      created := created || 'account'::text;
      actions := actions || 'account_created'::text;
      bodies := bodies || p_account_body;
    end if;
  end if;

  if deactivated is not null then
    raise exception using errcode = 'CX403', detail = 'member_deactivated',
      message = 'This person is deactivated in the org.', hint = 'An admin can reactivate them.';
  end if;

  -- The lock keeps a concurrent termination from overlooking the job that is about to be made.
  loop
    -- "is not distinct from" cannot use an index, so the planner has to look by person: one by agent would walk all
    -- sessions of the agent, and without statistics it cannot tell the two apart.
    select * into the_session from session s
    where s.org_id = p_org and s.user_account_id = known_account and s.agent_id is not distinct from the_agent.id
      and s.kind = 'conversation' and s.status <> 'TERMINATED'
    for no key update;
    exit when found;
    if the_agent.status <> 'ACTIVE' then
      raise exception using errcode = 'CX409', detail = 'agent_not_active',
        message = format('This agent is %s and takes no new sessions.', the_agent.status),
        hint = 'Activate it with `cortex agent update --status ACTIVE`, or choose another agent.';
    end if;
    insert into session (
      org_id, id, kind, user_account_id, agent_id, status, title, origin_channel_mapping_id, opened_by)
    values (
      p_org, p_session, 'conversation', known_account, the_agent.id, 'ACTIVE', nullif(p_title, ''), known_mapping, p_caller)
    on conflict (org_id, user_account_id, agent_id) where kind = 'conversation' and status <> 'TERMINATED'
      do nothing
    returning * into the_session;
    if found then
      insert into session_head (org_id, session_id) values (p_org, p_session);
      created := created || 'session'::text;
      actions := actions || 'session_created'::text;
      bodies := bodies || p_session_body;
      exit;
    end if;
  end loop;

  delivered := deliver_message(
    p_org, the_session, p_text, known_account, known_mapping, p_caller, p_job,
    actions || 'message_received'::text, bodies || p_message_body, p_job_body, p_active_body, p_chat);
  -- Whose key brought it says nothing about the person who wrote it.
  if exists (select from session_atlas b where b.org_id = p_org and b.session_id = the_session.id) then
    perform require_atlas_access(p_org, the_session.id, null, known_account);
  end if;
  perform note_use(p_org, case when connection.is_noted is not true then p_connection end,
    case when is_noted is not true then known_mapping end);
  session_id := the_session.id;
  message_seq := delivered.message_seq;
  job_id := delivered.job_id;
  user_account_id := known_account;
  replayed := false;
  if delivered.created_job then
    created := created || 'job'::text;
  end if;
  if p_key is not null then
    perform settle_once(p_org, p_caller, 'messages.ingest', p_key, jsonb_build_object(
      'session_id', session_id, 'message_seq', message_seq, 'job_id', job_id, 'user_account_id', user_account_id));
  end if;
  return next;
end
$$;

-- When something last came over a connection and from a sender, to the minute and to the hour: most messages cost no write for it.
-- Waits for nobody; null for what was noted lately.
create or replace function note_use(p_org uuid, p_connection uuid, p_mapping uuid) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  if p_connection is not null then
    update channel_connection c set last_inbound_at = plane_now()
    where c.org_id = p_org and c.id = (
      select o.id from channel_connection o where o.org_id = p_org and o.id = p_connection for no key update skip locked);
  end if;
  if p_mapping is not null then
    update channel_mapping m set last_used_at = plane_now()
    where m.org_id = p_org and m.id = (
      select o.id from channel_mapping o where o.org_id = p_org and o.id = p_mapping for no key update skip locked);
  end if;
end
$$;

-- Undoes the message, so that the caller checks the MAC of its sender's mapping and sends it again.
create or replace function require_checked(p_mapping uuid, p_account uuid, p_checked uuid, p_checked_account uuid)
  returns void language plpgsql immutable set search_path = public, pg_temp as $$
begin
  if p_mapping is not null and (p_mapping, p_account) is distinct from (p_checked, p_checked_account) then
    raise exception using errcode = 'CX409', detail = 'mapping_unchecked',
      message = 'Whose this sender is was not checked yet.', hint = 'Send it again.';
  end if;
end
$$;

create or replace function verified_mapping(p_org uuid, p_connection uuid, p_sender text)
  returns table (
    org_id uuid, id uuid, connection_id uuid, channel_user_id text, user_account_id uuid, verified boolean, mac bytea)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  perform set_config('app.org_id', p_org::text, true);
  return query
    select m.org_id, m.id, m.connection_id, m.channel_user_id, m.user_account_id, true, m.mac
    from channel_mapping m
    where m.org_id = p_org and m.connection_id = p_connection and m.channel_user_id = p_sender
      and m.verified_at is not null;
end
$$;

-- Whether a service brought a message of its person into a session: then it may read that session, whichever service opened it.
create or replace function is_linked(s session, p_service uuid) returns boolean
  language sql stable set search_path = public, pg_temp as $$
  select exists (
    select from message m
    where m.org_id = s.org_id and m.session_id = s.id and m.key_id = p_service and m.channel_mapping_id is not null)
$$;
