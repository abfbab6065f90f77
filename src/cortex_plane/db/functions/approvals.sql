-- Deciding an approval: `open_approval` locks and shows everything that a decision depends on, the domain decides,
-- `change_approval` writes what it decided. Both run in one transaction. Both find rows by their keys alone, so they keep one plan:
-- planning anew took longer than running. They join in the order in which they are written: without statistics, in a new plane,
-- the planner takes all rows of an org for one, and goes through them.

-- The life of an approval, as in approvals/model/approvals.py; a test compares the two for every pair of states.
create or replace function approval_may_move(old_status text, new_status text) returns boolean
  language sql immutable parallel safe
  return old_status = 'pending' and new_status in ('approved', 'denied', 'responded', 'expired', 'cancelled');

create or replace function approval_guard() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  -- What was decided stays as it was decided.
  if (old.status <> 'pending' and old is distinct from new)
      or (old.status <> new.status and not approval_may_move(old.status, new.status)) then
    raise exception using errcode = 'CX409', detail = 'illegal_transition',
      message = format('An approval cannot go from %s to %s.', old.status, new.status),
      hint = 'Read the approval again; somebody may have decided it.';
  end if;
  return new;
end
$$;

create or replace trigger approval_guard before update on approval_request
  for each row execute function approval_guard();

-- What was sent stays as it was sent.
create or replace function tool_call_guard() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  if old.status not in ('awaiting', 'approved', 'cleared') and (old.arguments, old.input_hash, old.tool_digest)
      is distinct from (new.arguments, new.input_hash, new.tool_digest) then
    raise exception using errcode = 'CX409', detail = 'illegal_transition',
      message = 'A call that was sent cannot be changed any more.', hint = 'Read the call again.';
  end if;
  return new;
end
$$;

create or replace trigger tool_call_guard before update of arguments, input_hash, tool_digest on tool_call
  for each row execute function tool_call_guard();

drop view if exists approval_shown;

drop function if exists approval_fields(approval_request);

-- What surfaces show of an approval besides its row. Without `set`, so that the planner expands it.
create or replace function approval_fields(r approval_request)
  returns table (input_hash text, created_at timestamptz, levels jsonb, level_times timestamptz[], escalations integer,
    escalate_at timestamptz)
  language sql stable
begin atomic
  select encode(r.input_hash, 'hex'), r.requested_at, r.escalations, r.escalate_at, jsonb_array_length(r.escalations),
    case when r.status = 'pending' then r.escalate_at[r.escalation_level + 1] end;
end;

-- An approval as surfaces show it. A change belongs to no agent and no session: whoever proposed it asks.
create view approval_shown with (security_invoker = true) as
  select r.org_id, r.id, r.kind, r.status, r.version, r.session_id, r.job_id, r.agent_id, coalesce(a.slug, '') as agent,
    coalesce(a.name, r.caused #>> '{0,name}', '') as agent_name,
    r.step_index, r.action_type, r.tool_name, r.tool_digest, r.target, r.arguments,
    r.original_arguments, f.input_hash, r.invocations, r.risk, r.action_summary,
    r.agent_says, r.asked_for, r.question, r.rule, r.rule_reason, r.gate_answers, r.policy_version, r.template, r.required_clearance, r.timeout_seconds,
    r.approvers, r.on_deny, r.self_approval, r.owner_id, r.caused_by, r.causes, r.caused, r.escalation_level, r.channels_dispatched,
    r.requested_at, r.deadline, r.reminded_at, r.resolved_at, r.resolved_by, r.resolved_by_name, r.resolution_reason,
    r.resolved_via, r.answer, f.created_at, r.quorum, r.delegated, r.standing, r.action, r.details, r.settles,
    r.remind_at, f.levels, f.level_times, f.escalations, f.escalate_at,
    -- Not `exists`, of which the planner makes a look at all votes of all orgs.
    case when r.status = 'pending' and (
        select true from approval_vote v
        where v.org_id = r.org_id and v.approval_id = r.id and v.version = r.version limit 1)
      then (select count(*) from counted_voters(r.org_id, r.id))
      else (select count(*) from approval_vote v
        where v.org_id = r.org_id and v.approval_id = r.id and v.version = r.version and v.decision = 'approved')
    end as votes_for,
    s.user_account_id, case when r.kind = 'change' then r.caused_by else s.opened_by end as opened_by, s.kind as session_kind
  from approval_request r cross join lateral approval_fields(r) f
  left join agent a on a.org_id = r.org_id and a.id = r.agent_id
  left join session s on s.org_id = r.org_id and s.id = r.session_id;
grant select on approval_shown to cortex_app;

-- Whoever is not staff (p_sees) sees requests of their own sessions, and those that name them or a role of theirs.
create or replace function sees_approval(p_sees uuid, p_roles text[], p_owner uuid, p_opener uuid, p_approvers jsonb) returns boolean
  language sql immutable parallel safe
  -- A session may have no owner.
  return (p_sees is null or p_sees in (p_owner, p_opener) or p_approvers -> 'members' ? p_sees::text
    or p_approvers -> 'roles' ?| p_roles) is true;

-- The whole record, as p_person sees it (see refusal_of).
create or replace function approval_record(p_org uuid, p_approval uuid, p_person jsonb) returns jsonb
  language plpgsql stable set search_path = public, pg_temp as $$
begin
  return (
    select to_jsonb(a) || jsonb_build_object('programs', program_changes(a.org_id, a.id), 'repeats',
      (select coalesce(max(call_repeats(a.org_id, i.call_id)), 0) from approval_invocation i
        where i.org_id = a.org_id and i.approval_id = a.id))
      || case when p_person is null then '{}' else jsonb_build_object('refusal', d.refusal, 'same_human_as', d.shaped_by) end
    from approval_shown a left join lateral approval_refusal(p_org, p_approval, p_person) d on p_person is not null
    where a.org_id = p_org and a.id = p_approval);
end
$$;

-- When a scheduler must look next: the reminder, the next level, the deadline.
create or replace function approval_next_action(r approval_request) returns timestamptz
  language sql stable set search_path = public, pg_temp
  return least(r.deadline, r.escalate_at[r.escalation_level + 1], case when r.reminded_at is null then r.remind_at end);

-- A request looks for its people: whoever is out of office hands their part on, hop by hop, and everybody who may decide now
-- is told. Nobody's absence makes a quorum impossible. Returns the hops, for the audit trail.
create or replace function reach_approval(p_org uuid, p_approval uuid)
  returns table (from_member_id uuid, from_member text, to_member_id uuid, to_member text, to_clearance integer, reason text)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  hop record;
  at timestamptz := plane_now();
begin
  for _ in 1 .. 100 loop
    select d.id as from_id, d.display_name as from_name, u.id as to_id, u.display_name as to_name, u.clearance,
      coalesce('out of office: ' || a.reason, 'out of office') as why
    into hop
    from approval_request r
    cross join lateral approval_deciders(p_org, p_approval) d
    join member_absence a on a.org_id = p_org and a.user_account_id = d.id and a.cancelled_at is null
      and a.starts_at <= at and a.ends_at > at
    join user_account u on u.org_id = p_org and u.id = a.delegate_id
    where r.org_id = p_org and r.id = p_approval and r.status = 'pending' and r.kind = 'call'
      and u.deactivated_at is null and taker_refusal(r, u) is null
      and not exists (select from approval_deciders(p_org, p_approval) already where already.id = u.id)
      and not exists (select from approval_vote v
        where v.org_id = p_org and v.approval_id = p_approval and v.user_account_id = d.id and v.version = r.version)
      and not exists (select from jsonb_to_recordset(r.quorum -> 'roles') q (role text, votes integer)
        where q.role = any (d.roles) and not q.role = any (u.roles))
    order by d.id, a.starts_at limit 1;
    exit when not found;
    perform delegate_approval(p_org, p_approval, hop.from_id, hop.from_name, hop.to_id, hop.to_name, hop.clearance, hop.why, true);
    return query select hop.from_id, hop.from_name, hop.to_id, hop.to_name, hop.clearance, hop.why;
  end loop;
  perform notify_approvers(p_org, p_approval);
end
$$;

-- One hop: the part of one person becomes the part of another.
create or replace function delegate_approval(
  p_org uuid, p_approval uuid, p_from uuid, p_from_name text, p_to uuid, p_to_name text, p_clearance integer, p_reason text,
  p_automatic boolean) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  at timestamptz := plane_now();
begin
  insert into approval_delegation (org_id, approval_id, from_member_id, from_member, to_member_id, to_member, to_clearance,
    reason, automatic, created_at)
  values (p_org, p_approval, p_from, p_from_name, p_to, p_to_name, p_clearance, p_reason, p_automatic, at);
  insert into approval_event (org_id, approval_id, event_type, actor_member_id, actor, payload, created_at)
  values (p_org, p_approval, 'delegated', p_from, p_from_name,
    jsonb_build_object('to', p_to, 'name', p_to_name, 'reason', p_reason, 'automatic', p_automatic), at);
  update approval_request r
  set delegated = r.delegated || p_from,
    approvers = jsonb_set(r.approvers, '{members}',
      case when r.approvers -> 'members' ? p_to::text then r.approvers -> 'members'
        else r.approvers -> 'members' || to_jsonb(p_to) end)
  where r.org_id = p_org and r.id = p_approval and r.status = 'pending';
  if not found then
    raise serialization_failure using message = 'the approval changed meanwhile';
  end if;
end
$$;

-- One level up: more people may decide, until the same deadline.
create or replace function escalate_approval(p_org uuid, p_approval uuid, p_approvers jsonb) returns integer
  language plpgsql set search_path = public, pg_temp as $$
declare
  reached approval_request%rowtype;
begin
  -- A reminder that would come at the same moment has come with it.
  update approval_request r
  set escalation_level = r.escalation_level + 1, approvers = p_approvers,
    reminded_at = coalesce(r.reminded_at, case when r.remind_at <= plane_now() then plane_now() end)
  where r.org_id = p_org and r.id = p_approval and r.status = 'pending'
  returning * into strict reached;
  update approval_request r set next_action_at = approval_next_action(reached) where r.org_id = p_org and r.id = p_approval;
  insert into approval_event (org_id, approval_id, event_type, payload, created_at)
  values (p_org, p_approval, 'escalated', jsonb_build_object('level', reached.escalation_level), plane_now());
  return reached.escalation_level;
end
$$;

-- The open approvals of these jobs, and this one: everybody locks them in the order in which an attempt asks, by tool and
-- digest, because whoever joins several of them has no other. Returns them as they are under their locks.
create or replace function lock_approvals(p_org uuid, p_jobs uuid[], p_approval uuid) returns setof approval_request
  language plpgsql set search_path = public, pg_temp as $$
begin
  -- An array, so that the planner looks these up and does not go through all that is open in the org.
  return query select r.* from approval_request r
  where r.org_id = p_org and (r.status = 'pending' or r.id = p_approval) and r.id = any (array(
    select i.approval_id from approval_invocation i where i.org_id = p_org and i.job_id = any (p_jobs)
    union all select p_approval where p_approval is not null))
  order by r.tool_name collate "C", r.input_hash, r.id for no key update;
end
$$;

-- Locks the jobs first (by id), then the approval together with the other open approvals of those jobs, in the order in
-- which an attempt asks. Each statement sees what was committed before it; a job that joined while this waited cannot be
-- locked in order any more, so it starts again. Rows are read with their locks, and each of them once: what the rules, the answer and the
-- receipt need of it is returned from here.
-- `p_person` decides (see refusal_of; `sees` as in sees_approval): everybody who could be the human behind that is `behind`.
-- `votes` are those that count, `cast_votes` all on the version that is there. `earlier` is what was recorded under `p_key`.
-- `receipt` is what the receipt of a decision says besides.
create or replace function open_approval(p_org uuid, p_approval uuid, p_person jsonb, p_key text)
  returns table (
    approval jsonb, visible boolean, jobs jsonb, calls jsonb, siblings jsonb, votes jsonb, cast_votes jsonb, behind jsonb, earlier jsonb,
    policies text, receipt jsonb, now timestamptz)
  language plpgsql set search_path = public, pg_temp set plan_cache_mode = force_generic_plan set join_collapse_limit = 1 as $$
#variable_conflict use_column
declare
  person uuid := p_person ->> 'id';
  roles text[] := array(select jsonb_array_elements_text(p_person -> 'roles'));
  asked approval_request;
  other approval_request;
  others approval_request[] := '{}';
  own_calls uuid[];
  own_jobs uuid[];
  with_others boolean;
  shapers uuid[];
  humans uuid[];
  fields jsonb;
  applied_by uuid;
  policy_digest text;
  repeated integer;
begin
  select coalesce(array_agg(i.call_id), '{}'), coalesce(array_agg(distinct i.job_id), '{}') into own_calls, own_jobs
  from approval_invocation i where i.org_id = p_org and i.approval_id = p_approval;
  select coalesce(jsonb_agg(jsonb_build_object(
      'id', j.id, 'status', j.status, 'holds', j.holds, 'open_approvals', j.open_approvals, 'agent_version', j.agent_version,
      -- As it stands there: whoever decides checks it.
      'checkpoint', jsonb_build_object('job', j.id,
        'step_index', j.checkpoint #> '{memory_context,working_data,$plane,step}',
        'crc32', j.checkpoint -> 'crc32', 'mac', encode(j.checkpoint_mac, 'hex')),
      'sealed', case when j.kind <> 'external' and j.status = 'WAITING_FOR_APPROVAL' then
        coalesce(whole_checkpoint(j.checkpoint, j.memory)::text, case when j.write_seq > 0 then '' end) end)
      order by j.id), '[]'),
    coalesce(bool_or(j.open_approvals > 1), false)
  into jobs, with_others
  from (
    select j.id, j.kind, j.status, j.holds, j.open_approvals, j.agent_version, j.checkpoint, j.memory, j.checkpoint_mac,
      j.write_seq
    from job j where j.org_id = p_org and j.id = any (own_jobs) order by j.id for no key update) j;
  -- Only a change has no calls.
  if cardinality(own_calls) = 0 then
    perform lock_change(p_org, p_approval);
  end if;
  -- Jobs that wait for this one alone have no others to look for.
  for other in select * from lock_approvals(p_org, case when with_others then own_jobs else '{}' end, p_approval) loop
    if other.id = p_approval then
      asked := other;
    elsif other.kind = 'call' then
      others := others || other;
    end if;
  end loop;
  if asked.id is null then
    return;
  end if;
  if asked.invocations <> cardinality(own_calls) and asked.kind <> 'change' then
    raise serialization_failure using message = 'another job joined this approval meanwhile';
  end if;
  select to_jsonb(f) || jsonb_build_object('agent', a.slug, 'agent_name', a.name, 'user_account_id', s.user_account_id,
    'opened_by', s.opened_by, 'session_kind', s.kind)
  into fields
  from agent a join session s on s.org_id = a.org_id cross join lateral approval_fields(asked) f
  where a.org_id = p_org and a.id = asked.agent_id and s.id = asked.session_id;
  if not found then
    select to_jsonb(f) || jsonb_build_object('agent', '', 'agent_name', coalesce(asked.caused #>> '{0,name}', ''), 'opened_by', asked.caused_by)
    into fields from approval_fields(asked) f;
  end if;
  visible := sees_approval((p_person ->> 'sees')::uuid, roles, (fields ->> 'user_account_id')::uuid, (fields ->> 'opened_by')::uuid,
    asked.approvers);
  -- Only what was sent before can have been asked about.
  select coalesce(jsonb_agg(jsonb_build_object(
      'id', c.id, 'job_id', c.job_id, 'status', c.status, 'step_index', c.step_index) order by c.id), '[]'),
    coalesce(max(case when c.dispatch_before is not null then call_repeats(p_org, c.id) end), 0)
  into calls, repeated
  from tool_call c where c.org_id = p_org and c.id = any (own_calls);
  siblings := '[]';
  if cardinality(others) > 0 then
    select jsonb_agg(jsonb_build_object(
        'id', o.id, 'tool_name', o.tool_name,
        'jobs', (select jsonb_agg(distinct i.job_id) from approval_invocation i
                 join tool_call c on c.org_id = i.org_id and c.id = i.call_id and c.status = 'awaiting'
                 where i.org_id = p_org and i.approval_id = o.id)) order by o.id)
    into siblings from unnest(others) o;
  end if;
  shapers := shapers_of(asked);
  humans := case when person is not null then voters_of(p_org, person, p_person ->> 'channel', 'infinity') end;
  behind := to_jsonb(coalesce(humans, '{}'));
  -- A vote counts as long as whoever gave it could still give it.
  select coalesce(jsonb_agg(jsonb_build_object('member_id', v.user_account_id, 'roles', v.roles, 'answer', v.answer, 'behind',
        v.behind) order by v.created_at, v.user_account_id)
      filter (where v.decision = 'approved' and v.counts), '[]'),
    coalesce(jsonb_agg(jsonb_build_object('version', v.version, 'member_id', v.user_account_id, 'member', v.member,
      'decision', v.decision, 'reason', v.reason, 'channel', v.channel, 'created_at', v.created_at)), '[]')
  into votes, cast_votes
  from (
    select v.*, u.roles, may_decide(asked, u, shapers) as counts, humans_behind(u, v.channel, v.created_at) as behind
    from approval_vote v join user_account u on u.org_id = v.org_id and u.id = v.user_account_id
    where v.org_id = p_org and v.approval_id = p_approval and v.version = asked.version) v;
  select p.applied_by_id, p.digest into applied_by, policy_digest
  from policy_version p where p.org_id = p_org and p.version = split_part(asked.policy_version, '.', 1)::bigint;
  approval := to_jsonb(asked) || fields || jsonb_build_object('repeats', repeated, 'programs', programs_behind(asked,
    (select (j ->> 'agent_version')::integer from jsonb_array_elements(jobs) j where j ->> 'id' = asked.job_id::text), applied_by));
  if p_person is not null then
    approval := approval || (
      select jsonb_build_object('refusal', d.refusal, 'same_human_as', d.shaped_by) from refusal_of(asked, p_person, shapers, humans) d);
    receipt := jsonb_build_object(
      'original_hash', encode(asked.original_hash, 'hex'), 'policy_digest', policy_digest,
      'active_key', (select k.id from signing_key k where k.org_id = p_org and k.retired_at is null),
      'delegations', case when cardinality(asked.delegated) = 0 then '[]' else (
        select coalesce(jsonb_agg(jsonb_build_object('from_member_id', h.from_member_id, 'from_member', h.from_member,
          'to_member_id', h.to_member_id, 'to_member', h.to_member, 'to_clearance', h.to_clearance, 'reason', h.reason,
          'automatic', h.automatic, 'at', h.created_at) order by h.id), '[]')
        from approval_delegation h where h.org_id = p_org and h.approval_id = p_approval) end);
  end if;
  if p_key is not null then
    select e.payload into earlier from approval_event e
    where e.org_id = p_org and e.approval_id = p_approval and e.idempotency_key = p_key;
  end if;
  policies := policies_version(p_org);
  now := plane_now();
  return next;
end
$$;

-- Whoever edits the arguments shapes the call.
create or replace function edited_by(p_member uuid, p_name text) returns jsonb
  language sql immutable set search_path = public, pg_temp
  return jsonb_build_array(jsonb_build_object('member_id', p_member, 'name', p_name, 'why', 'edited the arguments'));

-- What a vote, an edit, a decision or an expiry changes, in one statement, at the time `p_at` at which it was opened under its locks.
-- p_calls and p_jobs say what becomes of each; a call that is answered instead of sent has its result. A request that stays open has the
-- p_status 'pending'. An edit makes a new version, for
-- which only this yes counts. A decision comes with its receipt, signed. Returns what an edit changes in the record: the caller knows the rest.
create or replace function change_approval(
  p_org uuid, p_approval uuid, p_seen integer, p_version integer, p_status text, p_arguments text, p_input_hash bytea,
  p_person jsonb, p_reason text, p_vote text, p_key text,
  p_calls jsonb, p_grant_seconds double precision, p_jobs jsonb, p_cancelled uuid[], p_events jsonb,
  p_event_types text[], p_event_jobs uuid[], p_event_data jsonb[], p_actions text[], p_bodies bytea[],
  p_fact_jobs uuid[], p_at timestamptz, p_key_id uuid, p_receipt bytea, p_signature bytea)
  returns jsonb
  language plpgsql set search_path = public, pg_temp set plan_cache_mode = force_generic_plan set join_collapse_limit = 1 as $$
declare
  decider uuid := p_person ->> 'id';
  decider_name text := p_person ->> 'name';
  via text := p_person ->> 'channel';
  at timestamptz := p_at;
  the_approval approval_request%rowtype;
  is_first boolean;
  given record;
begin
  update approval_request r
  set status = p_status, version = p_version,
    original_arguments = case when p_arguments is null then r.original_arguments
      else coalesce(r.original_arguments, r.arguments) end,
    original_hash = case when p_arguments is null then r.original_hash else coalesce(r.original_hash, r.input_hash) end,
    arguments = coalesce(p_arguments::jsonb, r.arguments), input_hash = coalesce(p_input_hash, r.input_hash),
    causes = case when p_arguments is null or decider = any (r.causes) then r.causes else r.causes || decider end,
    caused = case when p_arguments is null then r.caused else merge_caused(r.caused, edited_by(decider, decider_name)) end,
    next_action_at = case when p_status = 'pending' then r.next_action_at end,
    resolved_at = case when p_status <> 'pending' then at end,
    resolved_by = case when p_status <> 'pending' then decider end,
    resolved_by_name = case when p_status <> 'pending' then decider_name end,
    resolution_reason = case when p_status <> 'pending' then p_reason end,
    resolved_via = case when p_status <> 'pending' then via end,
    answer = nullif(p_calls #> '{0,result}', 'null')
  where r.org_id = p_org and r.id = p_approval and r.status = 'pending' and r.version = p_seen
  returning * into the_approval;
  if not found then
    raise serialization_failure using message = 'the approval changed meanwhile';
  end if;
  if p_vote is not null then
    insert into approval_vote (org_id, approval_id, version, user_account_id, member, decision, reason, channel, created_at)
    values (p_org, p_approval, p_version, decider, decider_name, p_vote, p_reason, via, at)
    -- Whoever said yes may still say no before the others have decided, and whoever has proven a channel since says again what counted
    -- with somebody else's vote before.
    on conflict (org_id, approval_id, version, user_account_id)
    do update set decision = excluded.decision, reason = excluded.reason, channel = excluded.channel,
      created_at = excluded.created_at
    returning xmax = 0 into is_first;
    -- What ends a request, or edits it, changes the request itself; this changes only what its card counts.
    if is_first and p_status = 'pending' and p_arguments is null then
      perform raise_notifications(p_org, p_approval);
    end if;
  end if;
  for given in select * from jsonb_to_recordset(p_calls) c (id uuid, status text, error text, result jsonb) loop
    update tool_call c
    set status = given.status, error = given.error, edited = c.edited or p_arguments is not null,
      arguments = coalesce(p_arguments::jsonb, c.arguments), input_hash = coalesce(p_input_hash, c.input_hash),
      settled_by = case when given.status in ('rejected', 'answered') then p_status end,
      result = case when given.status = 'answered' then given.result else c.result end,
      turned_down = given.status = 'rejected' and p_status in ('denied', 'expired'),
      finished_at = case when given.status in ('rejected', 'answered') then at end
    where c.org_id = p_org and c.id = given.id and c.status = 'awaiting';
    if given.status = 'approved' then
      insert into approval_grant (org_id, call_id, approval_id, tool_digest, input_hash, created_at, expires_at)
      values (p_org, given.id, p_approval, the_approval.tool_digest, the_approval.input_hash, at,
        at + make_interval(secs => p_grant_seconds));
    end if;
  end loop;
  for given in select * from jsonb_to_recordset(p_jobs) j (id uuid, open integer, status text, error text) loop
    if given.status is null then
      update job j set open_approvals = given.open where j.org_id = p_org and j.id = given.id;
    else
      update job j
      set status = given.status, open_approvals = given.open, error_message = coalesce(given.error, j.error_message),
        runnable_at = case when given.status = 'RUNNING' then at end,
        holds = case when given.status = 'FAILED' then '{}' else j.holds end,
        held_at = case when given.status = 'FAILED' then null else j.held_at end
      where j.org_id = p_org and j.id = given.id;
    end if;
  end loop;
  if cardinality(p_cancelled) > 0 then
    update approval_request r
    set status = 'cancelled', next_action_at = null, resolved_at = at, resolution_reason = 'another call of its job ended it'
    where r.org_id = p_org and r.id = any (p_cancelled) and r.status = 'pending';
  end if;
  for given in select * from jsonb_to_recordset(p_jobs) j (id uuid, open integer, status text, error text)
    where j.status = 'FAILED'
  loop
    update tool_call c set status = 'rejected', error = given.error, settled_by = 'cancelled', finished_at = at
    where c.org_id = p_org and c.job_id = given.id and c.status in ('awaiting', 'approved');
  end loop;
  insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, idempotency_key, payload,
    created_at)
  select p_org, coalesce(e.approval, p_approval), e.type, case when e.approval is null then via end, decider, decider_name,
    case when e.keyed then p_key end, coalesce(e.payload, '{}'), at
  from jsonb_to_recordset(p_events) e (approval uuid, type text, keyed boolean, payload jsonb);
  if p_receipt is not null then
    insert into approval_receipt (org_id, approval_id, key_id, body, signature, created_at)
    values (p_org, p_approval, p_key_id, p_receipt, p_signature, at);
  end if;
  if the_approval.session_id is null then
    perform org_append(p_org, p_actions, p_bodies);
  else
    perform session_append(p_org, the_approval.session_id, 0, p_event_types, p_event_jobs, p_event_data, p_actions, p_bodies,
      p_fact_jobs);
  end if;
  return case when p_arguments is not null then jsonb_build_object('causes', the_approval.causes, 'caused', the_approval.caused) || (
    select jsonb_build_object('refusal', d.refusal, 'same_human_as', d.shaped_by)
    from refusal_of(the_approval, p_person, shapers_of(the_approval), voters_of(p_org, decider, via, 'infinity')) d) end;
end
$$;

-- The open approvals of jobs that end: whoever else waits on one of them keeps it. Locked before it looks, so that of two
-- jobs that end at once the second sees that the first does not wait any more.
create or replace function cancel_approvals(p_org uuid, p_jobs uuid[], p_reason text)
  returns table (id uuid, tool_name text, job_id uuid)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  at timestamptz;
begin
  perform lock_approvals(p_org, p_jobs, null);
  at := plane_now();
  update tool_call c set status = 'rejected', error = p_reason, settled_by = 'cancelled', finished_at = at
  where c.org_id = p_org and c.job_id = any (p_jobs) and c.status in ('awaiting', 'allowed', 'approved', 'parked');
  return query
    with ended as (
      update approval_request r
      set status = 'cancelled', next_action_at = null, resolved_at = at, resolution_reason = p_reason
      where r.org_id = p_org and r.status = 'pending' and r.id in (
          select i.approval_id from approval_invocation i where i.org_id = p_org and i.job_id = any (p_jobs))
        and not exists (
          select from approval_invocation i join tool_call c on c.org_id = i.org_id and c.id = i.call_id
          where i.org_id = p_org and i.approval_id = r.id and i.job_id <> all (p_jobs) and c.status = 'awaiting')
        -- An agent that runs elsewhere may ask for the same call in its next session: until then somebody answers.
        and not (r.kind = 'uncertain_effect' and exists (
          select from approval_invocation i join external_call x on x.org_id = i.org_id and x.call_id = i.call_id
          where i.org_id = p_org and i.approval_id = r.id and x.unsettled))
      returning r.id, r.tool_name, r.job_id),
    told as (
      insert into approval_event (org_id, approval_id, event_type, payload, created_at)
      select p_org, e.id, 'cancelled', jsonb_build_object('reason', p_reason), at from ended e)
    select e.id, e.tool_name, e.job_id from ended e order by e.id;
end
$$;

-- What a scheduler must look at, across orgs, in the order of its deadlines. Found here, acted on under its own org.
create or replace function find_due_approvals(p_limit integer) returns table (org_id uuid, id uuid, due timestamptz)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select r.org_id, r.id, r.next_action_at from approval_request r
  where r.next_action_at <= (select plane_now())
  order by r.next_action_at limit p_limit
$$;

create or replace function find_idle_sessions(p_limit integer) returns table (org_id uuid, id uuid, due timestamptz)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select s.org_id, s.id, s.idle_check_at from session s
  where s.idle_check_at <= (select plane_now())
  order by s.idle_check_at limit p_limit
$$;

-- How long until the next deadline; null where there is none.
create or replace function next_deadline() returns double precision
  language sql volatile security definer set search_path = public, pg_temp as $$
  select extract(epoch from least(
    (select min(r.next_action_at) from approval_request r where r.next_action_at is not null),
    (select min(s.idle_check_at) from session s where s.idle_check_at is not null),
    (select min(x.settle_at) from external_call x where x.settle_at is not null)) - plane_now())::double precision
$$;

call pg_temp.give_functions('cortex_scheduler', 'find_due_approvals(integer)', 'find_idle_sessions(integer)', 'next_deadline()');
