-- The tails of every verb: take the head's lock last, append what happened, update the head once.

-- The hash of an entry of format 2. Entries of format 1 were written by earlier releases: only `proof/model.py` knows their rule.
create or replace function chain_hash(previous bytea, seq bigint, at timestamptz, action text, job uuid, body_hash bytea)
  returns bytea
  language sql stable parallel safe
  return sha256(previous || '\x02'::bytea || int8send(seq) || int8send((extract(epoch from at) * 1000000)::bigint)
    || sha256(convert_to(action, 'UTF8')) || coalesce(uuid_send(job), '\x00000000000000000000000000000000'::bytea) || body_hash);

-- For verbs on one session: events and audit entries; `new_messages` were inserted by the caller under this lock.
-- `jobs` names the job of each audit entry, null where it concerns none. Returns how far the session's messages go now. One plain
-- INSERT for each row: a step appends one or two, and a set of one costs more than a row.
create or replace function session_append(
  p_org uuid, p_session uuid, new_messages integer, event_types text[], event_jobs uuid[], event_data jsonb[],
  actions text[], bodies bytea[], jobs uuid[] default '{}') returns bigint
  language plpgsql set search_path = public, pg_temp as $$
declare
  events integer := coalesce(cardinality(event_types), 0);
  entries integer := coalesce(cardinality(actions), 0);
  head session_head%rowtype;
  at timestamptz := plane_now();
  digest bytea;
begin
  if entries <= 1 then
    -- A step appends one entry at most: the head is locked and updated in one statement. Its time is read before the lock, so it counts
    -- from the last activity at least.
    if entries = 1 then
      digest := sha256(bodies[1]);
    end if;
    update session_head h
    set message_seq = h.message_seq + new_messages, event_seq = h.event_seq + events, audit_seq = h.audit_seq + entries,
      audit_hash = case when entries = 0 then h.audit_hash else
        chain_hash(h.audit_hash, h.audit_seq + 1, greatest(h.last_activity_at, at), actions[1], jobs[1], digest) end,
      last_activity_at = greatest(h.last_activity_at, at)
    where h.org_id = p_org and h.session_id = p_session
    returning h.message_seq, h.event_seq, h.audit_seq, h.audit_hash, h.last_activity_at
    into strict head.message_seq, head.event_seq, head.audit_seq, head.audit_hash, at;
    for i in 1 .. events loop
      if event_types[i] is not null then
        insert into event (org_id, session_id, seq, type, job_id, data, created_at)
        values (p_org, p_session, head.event_seq - events + i, event_types[i], event_jobs[i], event_data[i], at);
      end if;
    end loop;
    if entries = 1 then
      insert into audit_entry (org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at)
      values (p_org, p_session, head.audit_seq, 2, actions[1], jobs[1], bodies[1], digest, head.audit_hash, at);
    end if;
    return head.message_seq;
  end if;
  select * into strict head from session_head where org_id = p_org and session_id = p_session for update;
  at := greatest(plane_now(), head.last_activity_at);
  for i in 1 .. events loop
    head.event_seq := head.event_seq + 1;
    if event_types[i] is not null then
      insert into event (org_id, session_id, seq, type, job_id, data, created_at)
      values (p_org, p_session, head.event_seq, event_types[i], event_jobs[i], event_data[i], at);
    end if;
  end loop;
  for i in 1 .. entries loop
    digest := sha256(bodies[i]);
    head.audit_seq := head.audit_seq + 1;
    head.audit_hash := chain_hash(head.audit_hash, head.audit_seq, at, actions[i], jobs[i], digest);
    insert into audit_entry (org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at)
    values (p_org, p_session, head.audit_seq, 2, actions[i], jobs[i], bodies[i], digest, head.audit_hash, at);
  end loop;
  update session_head
  set message_seq = head.message_seq + new_messages, event_seq = head.event_seq, audit_seq = head.audit_seq,
      audit_hash = head.audit_hash, last_activity_at = at
  where org_id = p_org and session_id = p_session;
  return head.message_seq + new_messages;
end
$$;

-- For verbs on many sessions of one org: the same event for each of these jobs. Heads are locked in the order of their sessions, so that
-- two such verbs never wait for each other.
create or replace function sessions_append(p_org uuid, p_sessions uuid[], p_jobs uuid[], event_type text, event_data jsonb)
  returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  at timestamptz;
begin
  perform from (select distinct s as id from unnest(p_sessions) s order by s) s
  cross join lateral (select from session_head h where h.org_id = p_org and h.session_id = s.id for update) h;
  at := plane_now();
  with concerned as (
    select e.session_id, e.job_id, row_number() over (partition by e.session_id order by e.job_id) as number
    from unnest(p_sessions, p_jobs) e (session_id, job_id)),
  happened as (
    insert into event (org_id, session_id, seq, type, job_id, data, created_at)
    select p_org, c.session_id, h.event_seq + c.number, event_type, c.job_id, event_data, at
    from concerned c
    cross join lateral (
      select h.event_seq from session_head h where h.org_id = p_org and h.session_id = c.session_id limit 1) h)
  update session_head h set event_seq = h.event_seq + c.events, last_activity_at = at
  from (select c.session_id, count(*) as events from concerned c group by c.session_id) c
  cross join lateral (
    select k.ctid from session_head k where k.org_id = p_org and k.session_id = c.session_id limit 1) k
  where h.ctid = k.ctid;
end
$$;

-- For verbs on the org itself. Rare by design: this lock is shared by the whole org.
create or replace function org_append(p_org uuid, actions text[], bodies bytea[]) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  head org_head%rowtype;
  at timestamptz;
  body_hash bytea;
begin
  select * into strict head from org_head where org_id = p_org for update;
  at := plane_now();
  for i in 1 .. cardinality(actions) loop
    head.audit_seq := head.audit_seq + 1;
    body_hash := sha256(bodies[i]);
    head.audit_hash := chain_hash(head.audit_hash, head.audit_seq, at, actions[i], null, body_hash);
    insert into audit_entry (org_id, session_id, seq, format, action, body, body_hash, hash, created_at)
    values (p_org, null, head.audit_seq, 2, actions[i], bodies[i], body_hash, head.audit_hash, at);
  end loop;
  update org_head set audit_seq = head.audit_seq, audit_hash = head.audit_hash where org_id = p_org;
end
$$;
