-- Answers that people see grow in their chat. The message of such an answer is a notification of kind `reply`: while the answer is being
-- written its `data` has `stream` with the job and step whose chunks it shows, and `push_reply` puts the whole answer in their place.

-- Whether a message that shows the beginning of an answer needs no look yet: it is being sent, or was sent less than p_seconds ago. One
-- that its vendor refused is looked at.
create or replace function stream_rests(
  p_status text, p_error text, p_sent_at timestamptz, p_at timestamptz, p_seconds double precision) returns boolean
  language sql stable as $$
  select p_error is null and (p_status <> 'delivered' or p_at < p_sent_at + make_interval(secs => p_seconds))
$$;

-- Sessions of any org in which an answer is being written for a chat on one of these channels, or for which a chat shows the beginning of
-- one, except those whose message rests (p_seconds: of each channel). Those after p_after_org and p_after_session come first, so that a
-- caller who goes on after the last one reaches all. Sessions with chunks, and those with a message, are found by hops from one to the
-- next: the number of chunks does not matter, and the planner uses the indexes before it has statistics. The counts, of answers over the
-- same connection and into the same chat, include those that rest.
create or replace function find_reply_streams(
  p_channels text[], p_seconds double precision[], p_after_org uuid, p_after_session uuid, p_limit integer)
  returns table (
    org_id uuid, session_id uuid, connection_id uuid, channel_type text, address text, connection_streams bigint, chat_streams bigint)
  language sql stable security definer set search_path = public, pg_temp as $$
  with recursive written as (
    (select c.org_id, c.session_id from text_chunk c order by c.org_id, c.session_id limit 1)
    union all
    select following.org_id, following.session_id from written w
    cross join lateral (
      select c.org_id, c.session_id from text_chunk c
      where (c.org_id, c.session_id) > (w.org_id, w.session_id) order by c.org_id, c.session_id limit 1) following),
  begun as (
    (select h.org_id, h.stream_id, h.session_id from session_head h
      where h.stream_id is not null order by h.org_id, h.stream_id limit 1)
    union all
    select following.org_id, following.stream_id, following.session_id from begun b
    cross join lateral (
      select h.org_id, h.stream_id, h.session_id from session_head h
      where h.stream_id is not null and (h.org_id, h.stream_id) > (b.org_id, b.stream_id)
      order by h.org_id, h.stream_id limit 1) following),
  live as (
    select w.org_id, w.session_id from written w union select b.org_id, b.session_id from begun b),
  streams as (
    select h.org_id, h.session_id, h.stream_id, n.id as connection_id, n.channel_type, c.chat_id as address, s.seconds,
      count(*) over (partition by h.org_id, n.id) as connection_streams,
      count(*) over (partition by h.org_id, n.id, c.chat_id) as chat_streams
    from live l
    join session_head h on h.org_id = l.org_id and h.session_id = l.session_id
    left join channel_chat c on c.org_id = h.org_id and c.id = h.chat_id
    left join channel_connection n on n.org_id = c.org_id and n.id = c.connection_id
    left join unnest(p_channels, p_seconds) s (channel_type, seconds) on s.channel_type = n.channel_type
    where h.stream_id is not null or s.channel_type is not null and n.disabled_at is null)
  select t.org_id, t.session_id, t.connection_id, t.channel_type, t.address, t.connection_streams, t.chat_streams
  from streams t
  left join notification m on m.org_id = t.org_id and m.id = t.stream_id
  where not coalesce(stream_rests(m.status, m.last_error, m.sent_at, plane_now(), coalesce(t.seconds, 0)), false)
  order by coalesce((t.org_id, t.session_id) <= (p_after_org, p_after_session), false), t.org_id, t.session_id
  limit p_limit
$$;
call pg_temp.give_functions('cortex_scheduler', 'find_reply_streams(text[], double precision[], uuid, uuid, integer)');

-- A message that shows the beginning of an answer says what became of it instead: p_data.
create or replace function end_stream(p_org uuid, p_stream uuid, p_data jsonb, p_at timestamptz) returns void
  language sql set search_path = public, pg_temp as $$
  update notification n
  set data = (n.data - 'stream') || p_data, desired_version = n.desired_version + 1, status = 'pending',
    attempts = case when n.status = 'dead' then 0 else n.attempts end,
    -- What its vendor refused is put off until then, whatever it says.
    next_attempt_at = case when n.status = 'pending' and n.last_error is not null then n.next_attempt_at else p_at end
  where n.org_id = p_org and n.id = p_stream and n.data ? 'stream'
$$;

-- One look at a session: the message of its answer is begun, shows more, or ends because its chat or its job is over. p_seconds: between
-- two versions at least, and more for an answer that takes long. Nobody is waited for: whoever records the answer has the last word.
-- True where something is to be sent.
create or replace function advance_stream(
  p_org uuid, p_session uuid, p_channel text, p_seconds double precision, p_first integer, p_most integer) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  at timestamptz;
  head record;
  chat record;
  newest record;
  message record;
  stream jsonb;
begin
  perform set_config('app.org_id', p_org::text, true);
  -- What a crash of the database forgets of it is looked at again.
  perform set_config('synchronous_commit', 'off', true);
  at := plane_now();
  if exists (
    select from session_head h join notification n on n.org_id = p_org and n.id = h.stream_id
    where h.org_id = p_org and h.session_id = p_session and n.data ? 'stream'
      and stream_rests(n.status, n.last_error, n.sent_at, at, p_seconds)) then
    return false;
  end if;
  select h.chat_id, h.stream_id into head
  from session_head h where h.org_id = p_org and h.session_id = p_session for no key update skip locked;
  if not found then
    return false;
  end if;
  select c.id, c.connection_id, c.chat_id, c.thread, n.channel_type into chat
  from channel_chat c join channel_connection n on n.org_id = c.org_id and n.id = c.connection_id
  where c.org_id = p_org and c.id = head.chat_id;
  -- What a function asks a model on its way is no answer to a person.
  select c.job_id, c.step_index, c.seq, j.session_id, s.user_account_id into newest
  from (select t.* from text_chunk t where t.org_id = p_org and t.session_id = p_session order by t.seq desc limit 1) c
  join job j on j.org_id = p_org and j.id = c.job_id and j.kind = 'conversation' and j.status = 'RUNNING'
  join agent_version v on v.org_id = p_org and v.agent_id = j.agent_id and v.version = j.agent_version and not v.skill_config ? 'run'
  join session s on s.org_id = p_org and s.id = p_session and s.user_account_id is not null
  where not exists (select from step d where d.org_id = p_org and d.job_id = c.job_id and d.step_index = c.step_index);
  if newest.job_id is not null then
    select jsonb_build_object('job', newest.job_id, 'step', newest.step_index, 'chunk', newest.seq,
      'characters', coalesce(sum(length(c.text)), 0)) into stream
    from text_chunk c where c.org_id = p_org and c.job_id = newest.job_id and c.step_index = newest.step_index;
  end if;

  if not exists (select from notification n where n.org_id = p_org and n.id = head.stream_id and n.data ? 'stream') then
    if head.stream_id is not null then
      -- It has its last version already.
      update session_head h set stream_id = null where h.org_id = p_org and h.session_id = p_session;
    end if;
    if stream is null or (stream -> 'characters')::integer < p_first or chat.channel_type is distinct from p_channel then
      return false;
    end if;
    insert into notification (org_id, id, kind, connection_id, channel_type, user_account_id, address, data, next_attempt_at, created_at)
    values (p_org, new_id(), 'reply', chat.connection_id, chat.channel_type, newest.user_account_id, chat.chat_id,
      jsonb_build_object('chat', chat.id, 'session', p_session, 'thread', chat.thread, 'stream', stream), at, at)
    returning id into head.stream_id;
    update session_head h set stream_id = head.stream_id where h.org_id = p_org and h.session_id = p_session;
    return true;
  end if;

  select n.* into message from notification n where n.org_id = p_org and n.id = head.stream_id for no key update skip locked;
  if not found or not message.data ? 'stream' then
    return false;
  end if;
  if message.data ->> 'chat' is distinct from chat.id::text then
    -- Their person wrote elsewhere: the answer goes there. In another thread of the chat they still see it.
    perform end_stream(p_org, message.id, '{"ended": "moved"}', at);
  elsif exists (select from job j where j.org_id = p_org and j.id = (message.data #>> '{stream,job}')::uuid
      and j.status in ('COMPLETED', 'FAILED', 'CANCELLED')) then
    perform end_stream(p_org, message.id, jsonb_build_object('job', message.data #> '{stream,job}', 'ended', 'over'), at);
  else
    if message.last_error is not null and not message.data -> 'stream' ? 'stopped' then
      -- Its vendor refused a version: the next one is the last.
      update notification n set data = jsonb_set(n.data, '{stream,stopped}', 'true') where n.org_id = p_org and n.id = message.id;
      return false;
    end if;
    if stream is null and not exists (
        select from step d where d.org_id = p_org and d.job_id = (message.data #>> '{stream,job}')::uuid
          and d.step_index = (message.data #>> '{stream,step}')::integer) then
      -- The answer broke off, and nobody writes it now.
      stream := (message.data -> 'stream') || '{"chunk": 0, "characters": 0}';
    end if;
    if stream_rests(message.status, null, message.sent_at, at,
        greatest(p_seconds, extract(epoch from at - message.created_at)::double precision / 8))
      or message.data -> 'stream' ? 'stopped' or stream is null
      or stream -> 'chunk' = message.data #> '{stream,chunk}'
      or (stream - 'chunk' - 'characters' = (message.data -> 'stream') - 'chunk' - 'characters'
        and least((stream -> 'characters')::integer, (message.data #> '{stream,characters}')::integer) >= p_most)
      or at < message.sent_at + make_interval(secs => greatest(p_seconds, extract(epoch from at - message.created_at)::double precision / 8))
    then
      return false;
    end if;
    update notification n
    set data = jsonb_set(n.data, '{stream}', stream), desired_version = n.desired_version + 1, status = 'pending', next_attempt_at = at
    where n.org_id = p_org and n.id = message.id;
    return true;
  end if;
  update session_head h set stream_id = null where h.org_id = p_org and h.session_id = p_session;
  return true;
end
$$;
