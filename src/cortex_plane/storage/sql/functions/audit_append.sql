-- The tails of every verb: take the head's lock last, append what happened, update the head once.

create or replace function chain_hash(previous bytea, seq bigint, at timestamptz, body_hash bytea) returns bytea
  language sql immutable parallel safe
  return sha256(previous || int8send(seq) || int8send((extract(epoch from at) * 1000000)::bigint) || body_hash);

-- For verbs on one session: events and audit entries; `new_messages` were inserted by the caller under this lock.
-- Returns how far the session's messages go now. Two statements, however much there is to append: steps end here.
create or replace function session_append(
  p_org uuid, p_session uuid, new_messages integer, event_types text[], event_jobs uuid[], event_data jsonb[],
  actions text[], bodies bytea[]) returns bigint
  language plpgsql set search_path = public, pg_temp as $$
declare
  head session_head%rowtype;
  at timestamptz;
  body_hashes bytea[] := '{}';
  hashes bytea[] := '{}';
  latest bytea;
begin
  select * into strict head from session_head where org_id = p_org and session_id = p_session for update;
  at := plane_now();
  latest := head.audit_hash;
  for i in 1 .. coalesce(cardinality(actions), 0) loop
    body_hashes[i] := sha256(bodies[i]);
    latest := chain_hash(latest, head.audit_seq + i, at, body_hashes[i]);
    hashes[i] := latest;
  end loop;
  with happened as (
    insert into event (org_id, session_id, seq, type, job_id, data, created_at)
    select p_org, p_session, head.event_seq + e.number, e.type, e.job, e.data, at
    from unnest(event_types, event_jobs, event_data) with ordinality e (type, job, data, number)
    where e.type is not null),
  proven as (
    insert into audit_entry (org_id, session_id, seq, action, body, body_hash, hash, created_at)
    select p_org, p_session, head.audit_seq + a.number, a.action, a.body, a.body_hash, a.hash, at
    from unnest(actions, bodies, body_hashes, hashes) with ordinality a (action, body, body_hash, hash, number))
  update session_head
  set message_seq = head.message_seq + new_messages, event_seq = head.event_seq + coalesce(cardinality(event_types), 0),
      audit_seq = head.audit_seq + coalesce(cardinality(actions), 0), audit_hash = latest, last_activity_at = at
  where org_id = p_org and session_id = p_session;
  return head.message_seq + new_messages;
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
    head.audit_hash := chain_hash(head.audit_hash, head.audit_seq, at, body_hash);
    insert into audit_entry (org_id, session_id, seq, action, body, body_hash, hash, created_at)
    values (p_org, null, head.audit_seq, actions[i], bodies[i], body_hash, head.audit_hash, at);
  end loop;
  update org_head set audit_seq = head.audit_seq, audit_hash = head.audit_hash where org_id = p_org;
end
$$;
