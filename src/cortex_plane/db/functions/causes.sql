-- Whom an identity stands for: a person (the member whom a guest turned out to be), or whoever made the key of a program. Null where
-- that is not known.
create or replace function person_behind(p_org uuid, p_identity uuid) returns uuid
  language plpgsql stable set search_path = public, pg_temp as $$
begin
  return coalesce(
    (select coalesce(u.became, u.id) from user_account u where u.org_id = p_org and u.id = p_identity),
    (select coalesce(k.user_account_id, k.owner_id) from api_key k where k.org_id = p_org and k.id = p_identity));
end
$$;

-- The causes of a call that a job is about to ask for: everybody who shaped it, whatever verb asks. p_read_to: how far a conversation
-- has read its messages; a task counts all of its session. p_askers: identities of those who ask now. `causes` are the members,
-- `caused` is what the card shows: member, name and why; member is null where nobody can be named by id.
create or replace function call_causes(p_org uuid, p_job uuid, p_read_to bigint, p_askers uuid[])
  returns table (causes uuid[], caused jsonb)
  language plpgsql stable set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  -- Not in plain SQL: that would be planned anew for every call.
  return query
  with recursive chain as (
    select j.id, j.resubmitted_from, coalesce(j.submitted_by, j.caused_by) as identity, j.caused_by from job j
    where j.org_id = p_org and j.id = p_job
    union all
    select o.id, o.resubmitted_from, coalesce(o.submitted_by, o.caused_by), o.caused_by
    from chain c join job o on o.org_id = p_org and o.id = c.resubmitted_from)
  , shaped (identity, why, name) as (
    select c.identity, case when c.resubmitted_from is null then 'submitted the job' else 'submitted the job again' end, null::text
    from chain c where c.identity is not null
    union all
    select c.caused_by, 'submitted the job', null from chain c where c.caused_by is not null
    union all
    (select distinct i.identity, case m.role when 'system' then 'told it, as an operator, what it has read'
      else 'wrote or brought a message that it has read' end, null
    from job j
    join message m on m.org_id = p_org and m.session_id = j.session_id
      and (m.role = 'user' and (j.kind = 'task' or m.seq <= p_read_to) or m.role = 'system' and m.job_id = p_job)
    cross join lateral (
      select m.author_id
      -- A message of a channel was brought by no key: whoever set its connection up, or vouched for its sender, could have made it.
      union all select m.key_id where not exists (
        select from channel_connection c where c.org_id = p_org and c.id = m.key_id)
      union all select unnest(possible_senders(c, v, m.created_at)) from channel_connection c
        left join channel_mapping v on v.org_id = p_org and v.id = m.channel_mapping_id
        where c.org_id = p_org and c.id = m.key_id) i (identity)
    where j.org_id = p_org and j.id = p_job and j.kind <> 'external' and i.identity is not null)
    union all
    select w.sender_id, format('sent the signal %s', w.name), null from job_wait w
    where w.org_id = p_org and w.job_id = p_job and w.arrived_at is not null
    union all
    select v.created_by_id, format('wrote version %s of the agent', v.version), v.created_by
    from job j join agent_version v on v.org_id = p_org and v.agent_id = j.agent_id and v.version = j.agent_version
    where j.org_id = p_org and j.id = p_job
    union all
    select r.resolved_by,
      case when r.status = 'responded' then 'gave an answer that it has read'
        when r.kind = 'call' then 'gave a reason that it has read' else 'answered whether a call happened' end,
      r.resolved_by_name
    from approval_invocation i join approval_request r on r.org_id = p_org and r.id = i.approval_id
    where i.org_id = p_org and i.job_id = p_job and r.resolved_by_name is not null
      and case r.kind when 'call' then r.status = 'responded' or (
          r.status = 'denied' and r.on_deny = 'continue' and r.resolution_reason is not null)
        else r.status in ('approved', 'denied') end
    union all
    select v.user_account_id, 'answered whether a call happened', v.member
    from approval_invocation i join approval_request r on r.org_id = p_org and r.id = i.approval_id
    join approval_vote v on v.org_id = p_org and v.approval_id = r.id
    where i.org_id = p_org and i.job_id = p_job and r.kind = 'uncertain_effect' and r.status in ('approved', 'denied')
    union all
    select a.identity,
      format('set up the %s through which %s came that it has read', case r.resolved_via when 'webhook' then 'webhook'
        else 'connection' end, case r.status when 'responded' then 'an answer' else 'a reason' end), null
    from approval_invocation i join approval_request r on r.org_id = p_org and r.id = i.approval_id
    join channel_mapping m on m.org_id = p_org and m.user_account_id = r.resolved_by
    join channel_connection c on c.org_id = p_org and c.id = m.connection_id and c.channel_type = r.resolved_via
    cross join lateral unnest(possible_senders(c, m, r.resolved_at)) a (identity)
    where i.org_id = p_org and i.job_id = p_job and r.kind = 'call' and is_signed_channel(r.resolved_via)
      and (r.status = 'responded' or (r.status = 'denied' and r.on_deny = 'continue' and r.resolution_reason is not null))
    union all
    select e.actor_member_id, 'edited the arguments of a call', e.actor
    from approval_invocation i join approval_event e on e.org_id = p_org and e.approval_id = i.approval_id
    where i.org_id = p_org and i.job_id = p_job and e.event_type = 'edited'
    union all
    select c.identity, 'wrote the context of the session', null
    from job j join session s on s.org_id = p_org and s.id = j.session_id cross join lateral unnest(s.context_by) c (identity)
    where j.org_id = p_org and j.id = p_job
    union all
    select s.user_account_id, 'is the person for whom it works', null
    from job j join session s on s.org_id = p_org and s.id = j.session_id
    where j.org_id = p_org and j.id = p_job and s.on_behalf_by is not null
    union all
    -- A call that a connection asks for: whoever set it up could have made it, and whoever vouched for the account of the person
    -- behind it could be that person.
    select unnest(c.set_up_by), 'set up the connection that asked for the call', null
    from job j join session s on s.org_id = p_org and s.id = j.session_id
    join channel_connection c on c.org_id = p_org and c.id = s.opened_by
    where j.org_id = p_org and j.id = p_job
    union all
    (select distinct unnest(m.vouched_by), 'vouched for the account that asked for the call', null
    from job j join session s on s.org_id = p_org and s.id = j.session_id
    join channel_mapping m on m.org_id = p_org and m.connection_id = s.opened_by and m.user_account_id = any (p_askers)
      and m.removed_at is null and m.account_proven_at is null
    where j.org_id = p_org and j.id = p_job)
    union all
    select a.identity, 'asked for the call', null from unnest(p_askers) a (identity))
  , behind as materialized (
    select s.why, s.name, person_behind(p_org, s.identity) as id from shaped s)
  , named as (
    select distinct on (b.id, b.why) b.id, b.why,
      coalesce((select u.display_name from user_account u where u.org_id = p_org and u.id = b.id), b.name) as name
    from behind b order by b.id, b.why)
  select coalesce(array_agg(distinct n.id) filter (where n.id is not null), '{}'),
    coalesce(jsonb_agg(jsonb_build_object('member_id', n.id, 'name', n.name, 'why', n.why) order by n.name, n.why), '[]')
  from named n;
end
$$;

-- How often somebody answered about a call that it did not happen: after each such answer it may be sent again.
create or replace function call_repeats(p_org uuid, p_call uuid) returns integer
  language sql stable set search_path = public, pg_temp as $$
  select count(*)::integer
  from approval_invocation i
  join approval_request r on r.org_id = p_org and r.id = i.approval_id and r.kind = 'uncertain_effect'
  join approval_event e on e.org_id = p_org and e.approval_id = r.id and e.event_type = 'answered'
  where i.org_id = p_org and i.call_id = p_call and e.payload ->> 'verdict' = 'did_not_happen'
$$;

-- Two lists of causes as one.
create or replace function merge_caused(p_one jsonb, p_other jsonb) returns jsonb
  language sql immutable set search_path = public, pg_temp as $$
  select coalesce(jsonb_agg(c.cause order by c.cause ->> 'name', c.cause ->> 'why'), '[]')
  from (select distinct e as cause from jsonb_array_elements(p_one || p_other) e) c
$$;

-- What programs changed that this call profits from: its agent, the policies it was asked for under, what is confirmed of its tool,
-- and the atlases of its session. As cards say it. p_agent_version: of its job; p_applied_by: who applied its policies.
create or replace function programs_behind(r approval_request, p_agent_version integer, p_applied_by uuid) returns text[]
  language sql stable set search_path = public, pg_temp as $$
  select coalesce(array_agg(format('%s %s', k.name, c.did) order by k.name, c.did), '{}')
  from (
    select v.created_by_id, format('wrote version %s of the agent', v.version) from agent_version v
    where v.org_id = r.org_id and v.agent_id = r.agent_id and v.version = p_agent_version
    union all
    select p_applied_by, format('applied version %s of the policies', split_part(r.policy_version, '.', 1))
    union all
    select t.confirmed_by_id, 'confirmed its tool' from tool_confirmation t
    where t.org_id = r.org_id and t.tool_name = r.tool_name and t.revoked_at is null
    union all
    select a.published_by_id, format('published version %s of the atlas %s', a.version, a.atlas_id)
    from session_atlas b join atlas_version a on a.org_id = b.org_id and a.atlas_id = b.atlas_id and a.version = b.version
    where b.org_id = r.org_id and b.session_id = r.session_id) c (identity, did)
  join api_key k on k.org_id = r.org_id and k.id = c.identity and k.user_account_id is null
$$;

-- The same for a request that the caller has not read.
create or replace function program_changes(p_org uuid, p_approval uuid) returns text[]
  language sql stable set search_path = public, pg_temp as $$
  select programs_behind(r, j.agent_version, (
    select p.applied_by_id from policy_version p
    where p.org_id = r.org_id and p.version = split_part(r.policy_version, '.', 1)::bigint))
  from approval_request r left join job j on j.org_id = r.org_id and j.id = r.job_id
  where r.org_id = p_org and r.id = p_approval
$$;
