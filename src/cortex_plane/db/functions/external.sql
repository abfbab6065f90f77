-- Agents that run elsewhere: each call is authorised, begun and settled by a verb of its own, under the lock of its job.

-- Whatever would make a job runnable leaves one alone that nobody here runs.
create or replace function job_external() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  new.runnable_at := null;
  return new;
end
$$;

create or replace trigger job_external before insert or update of runnable_at on job
  for each row when (new.kind = 'external') execute function job_external();

-- Whose keys the calls of a session have: those of its person, or of the program that opened it. A service that works for a person has keys of
-- its own for each: neither they nor another service meet them.
create or replace function call_opener(s session) returns uuid
  language sql immutable parallel safe
  return case when s.on_behalf_by is null then coalesce(s.user_account_id, s.opened_by)
    else md5(s.on_behalf_by::text || s.user_account_id::text)::uuid end;

-- Whether its person is still there and a member, where a service works for one. Raises otherwise; never false.
create or replace function require_person(s session) returns boolean
  language plpgsql stable cost 1000 set search_path = public, pg_temp as $$
declare
  person user_account%rowtype;
begin
  select u.* into person from user_account u where u.org_id = s.org_id and u.id = s.user_account_id;
  if person.deactivated_at is not null then
    raise exception using errcode = 'CX409', detail = 'member_deactivated',
      message = 'The member for whom this session was opened is deactivated.',
      hint = 'Do nothing more in it; an admin may reactivate them: `cortex member update --activate`.';
  end if;
  if person.roles <@ '{guest}' then
    raise exception using errcode = 'CX403', detail = 'guest_not_served',
      message = 'The member for whom this session was opened is a guest by now, and no program works on behalf of one.',
      hint = 'Do nothing more in it; an admin may make them a member again: `cortex member update --role`.';
  end if;
  return true;
end
$$;

-- A call as its agent sees it.
drop view if exists external_call_shown cascade;
create view external_call_shown with (security_invoker = true) as
  select x.org_id, x.call_id as id, x.session_id, c.job_id, x.agent_id, a.slug as agent, c.step_index, c.tool_name as tool,
    c.tool_digest, c.arguments, encode(c.input_hash, 'hex') as input_hash, c.edited, x.claims_read_only as read_only, x.risk,
    x.declares_risk, c.on_uncertain, x.timeout_seconds, x.key, c.status, c.verdict, c.rule, c.attempt, c.dispatch_before, c.settle_after,
    c.result, c.error, c.settled_by, x.policies, x.sender, x.asked_hash, x.asker, x.caused_by, j.status as job_status, j.holds <> '{}' as held,
    r.id as approval_id, r.status as approval_status, r.kind as approval_kind, r.deadline, x.created_at, c.finished_at,
    s.user_account_id, s.opened_by, j.policies as request_policies, plane_now() as now, h.event_seq, x.unsettled
  from external_call x
  join tool_call c on c.org_id = x.org_id and c.id = x.call_id
  join job j on j.org_id = x.org_id and j.id = x.job_id
  join agent a on a.org_id = x.org_id and a.id = x.agent_id
  join session s on s.org_id = x.org_id and s.id = x.session_id
  join session_head h on h.org_id = x.org_id and h.session_id = x.session_id
  left join lateral (
    select r.id, r.status, r.kind, r.deadline from approval_invocation i
    join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
    where i.org_id = c.org_id and i.call_id = c.id order by i.created_at desc, r.id desc limit 1) r on true;
grant select on external_call_shown to cortex_app;

create or replace function read_call(p_org uuid, p_call uuid, p_sees uuid) returns setof external_call_shown
  -- In the order of the view: a new plane has no statistics, and another order walks all sessions of the org.
  language plpgsql set search_path = public, pg_temp set join_collapse_limit = 1 as $$
begin
  perform set_config('app.org_id', p_org::text, true);
  return query
    select c.* from external_call_shown c
    where c.org_id = p_org and c.id = p_call and (p_sees is null or p_sees in (c.user_account_id, c.opened_by));
end
$$;

drop function if exists doubted_call(uuid, uuid, uuid, text, bytea);
drop function if exists doubted_call(uuid, uuid, uuid, text, bytea, uuid);

-- The call that a request is as long as nobody knows what became of it: the same tool and arguments, or those that an approver made of
-- them (p_digest: the digest of the tool, p_input_hash), asked for by the same identity in this session, or in an earlier one of its
-- outside id, and begun by another process than p_runner or in doubt. An answer of people is for whoever asks next, in any process: until
-- then it is as a doubt (see take_answer). p_except: a call that is not looked at, when it begins; then only what is in doubt now counts.
create or replace function doubted_call(
  p_org uuid, p_job uuid, p_asker uuid, p_runner text, p_request_hash bytea, p_digest text, p_input_hash bytea,
  p_except uuid default null) returns uuid
  language sql stable set search_path = public, pg_temp as $$
  select x.call_id from job j
  join session s on s.org_id = j.org_id and s.id = j.session_id
  cross join lateral (
    select x.* from external_call x
    where x.org_id = j.org_id and x.agent_id = j.agent_id and x.opener = call_opener(s)
      and x.unsettled and x.request_hash = p_request_hash
    union all
    select x.* from tool_call e join external_call x on x.org_id = e.org_id and x.call_id = e.id
    where e.org_id = j.org_id and e.edited and e.input_hash = p_input_hash and e.tool_digest = p_digest
      and x.agent_id = j.agent_id and x.opener = call_opener(s) and x.unsettled) x
  join tool_call c on c.org_id = x.org_id and c.id = x.call_id
  where j.org_id = p_org and j.id = p_job and x.asker = p_asker and x.call_id is distinct from p_except
    and (x.job_id = p_job or exists (
      select from session earlier
      where earlier.org_id = p_org and earlier.id = x.session_id and earlier.outside_id = s.outside_id))
    and (c.status = 'uncertain' or (c.status = 'intended' and x.runner is distinct from p_runner)
      or x.given_up
      or (c.status in ('completed', 'failed', 'cleared') and c.settled_by is not null and p_except is null))
  order by x.created_at, x.call_id limit 1
$$;

-- The keys of a call stand for nothing any more: a new call may have them.
create or replace function release_keys(p_org uuid, p_call uuid) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  delete from external_call_key k where k.org_id = p_org and k.call_id = p_call;
  update external_call x set key = null, unsettled = false where x.org_id = p_org and x.call_id = p_call;
end
$$;

-- The call that a key joined while that one was in doubt.
create or replace function joined_call(p_org uuid, p_agent uuid, p_opener uuid, p_key text, p_request_hash bytea) returns uuid
  language plpgsql stable set search_path = public, pg_temp as $$
declare
  joined external_call_key%rowtype;
begin
  select * into joined from external_call_key k
  where k.org_id = p_org and k.agent_id = p_agent and k.opener = p_opener and k.key = p_key;
  if joined.request_hash <> p_request_hash then
    raise exception using errcode = 'CX409', detail = 'call_key_reused', message = 'This key stands for another call of the agent.',
      hint = 'Send a new key with a new call; repeat a key only with the same tool and arguments.';
  end if;
  return joined.call_id;
end
$$;

drop function if exists join_doubt(uuid, uuid, uuid, text, uuid, text, bytea, text[], bytea[]);

-- A new key stands for a call that is in doubt (p_call: one of doubted_call) from now on.
create or replace function join_doubt(
  p_org uuid, p_job uuid, p_call uuid, p_key text, p_asker uuid, p_runner text, p_request_hash bytea, p_digest text, p_input_hash bytea,
  p_actions text[], p_bodies bytea[]) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_job job%rowtype;
begin
  perform set_config('app.org_id', p_org::text, true);
  the_job := lock_external(p_org, p_job, false);
  if doubted_call(p_org, p_job, p_asker, p_runner, p_request_hash, p_digest, p_input_hash) is distinct from p_call then
    perform call_changed();
  end if;
  insert into external_call_key (org_id, agent_id, opener, key, call_id, request_hash)
  select p_org, x.agent_id, x.opener, p_key, p_call, p_request_hash from external_call x where x.org_id = p_org and x.call_id = p_call;
  perform session_append(p_org, the_job.session_id, 0, '{}', '{}', '{}', p_actions, p_bodies,
    array_fill(p_job, array[cardinality(p_actions)]));
end
$$;

-- A new key stands for a call that has not begun (p_call: one of find_waiting_call) from now on.
create or replace function join_waiting(
  p_org uuid, p_job uuid, p_call uuid, p_key text, p_request_hash bytea, p_actions text[], p_bodies bytea[]) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_job job%rowtype;
begin
  perform set_config('app.org_id', p_org::text, true);
  the_job := lock_external(p_org, p_job, false);
  insert into external_call_key (org_id, agent_id, opener, key, call_id, request_hash)
  select p_org, x.agent_id, x.opener, p_key, p_call, p_request_hash from external_call x where x.org_id = p_org and x.call_id = p_call
  on conflict do nothing;
  if found then
    perform session_append(p_org, the_job.session_id, 0, '{}', '{}', '{}', p_actions, p_bodies,
      array_fill(p_job, array[cardinality(p_actions)]));
  end if;
end
$$;

-- What a verdict about a new call depends on, in one round trip; no row where the session cannot be seen.
-- p_runner: null where its agent does not say which process runs it; then nothing is doubted. A key that joined a call stands for it
-- whatever its agent says. p_request_hash: null only without a key.
-- p_acts: refused where an atlas of the session keeps out whoever asks (p_caller, p_person: see require_atlas_access).
drop function if exists call_context(uuid, uuid, uuid, text, text, bytea, boolean, uuid, uuid);
drop function if exists call_context(uuid, uuid, uuid, text, text, bytea, boolean, uuid, uuid, text, bytea);

create or replace function call_context(
  p_org uuid, p_session uuid, p_sees uuid, p_key text, p_tool text, p_input_hash bytea, p_acts boolean, p_caller uuid,
  p_person uuid, p_runner text, p_request_hash bytea, p_digest text)
  returns table (
    job_id uuid, agent_id uuid, agent text, teams uuid[], kind text, skill_config jsonb, request_policies jsonb, policies text,
    earlier uuid, joined uuid, doubted uuid, turned_down boolean, bound jsonb, known_risk text, at timestamptz)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  perform set_config('app.org_id', p_org::text, true);
  if p_acts and exists (select from session_atlas b where b.org_id = p_org and b.session_id = p_session) and exists (
      select from session s
      where s.org_id = p_org and s.id = p_session and (p_sees is null or p_sees in (s.user_account_id, s.opened_by))) then
    perform require_atlas_access(p_org, p_session, p_caller, p_person);
  end if;
  return query
    select j.id, s.agent_id, a.slug, array_remove(array[t.id, t.parent_id], null), s.kind, v.skill_config, j.policies,
      policies_version(p_org),
      (select x.call_id from external_call x
        where x.org_id = p_org and x.agent_id = s.agent_id and x.opener = call_opener(s)
          and x.key = p_key),
      case when p_key is not null then
        joined_call(p_org, s.agent_id, call_opener(s), p_key, p_request_hash) end,
      case when p_runner is not null then
        doubted_call(p_org, j.id, coalesce(p_person, p_caller), p_runner, p_request_hash, p_digest, p_input_hash) end,
      exists (select from tool_call c
        where c.org_id = p_org and c.job_id = j.id and c.tool_name = p_tool and c.input_hash = p_input_hash
          and c.turned_down),
      case when exists (select from session_atlas b where b.org_id = p_org and b.session_id = s.id)
        then session_bound(p_org, s.id) end, known_risk(p_org, p_tool), plane_now()
    from session s
    join agent a on a.org_id = s.org_id and a.id = s.agent_id
    join team t on t.org_id = a.org_id and t.id = a.team_id
    left join job j on j.org_id = s.org_id and j.session_id = s.id and j.kind = 'external'
    left join agent_version v on v.org_id = j.org_id and v.agent_id = j.agent_id and v.version = j.agent_version
    where s.org_id = p_org and s.id = p_session and (p_sees is null or p_sees in (s.user_account_id, s.opened_by))
      and (not p_acts or s.on_behalf_by is null or require_person(s));
end
$$;

create or replace function require_open(p_job job) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  if p_job.status in ('COMPLETED', 'FAILED', 'CANCELLED') then
    raise exception using errcode = 'CX409', detail = 'external_over',
      message = format('This session is over: its job is %s.', p_job.status),
      hint = 'Do nothing more in it; open a new session where the agent is to go on.';
  end if;
  if p_job.holds <> '{}' then
    raise exception using errcode = 'CX409', detail = 'external_held',
      message = 'This session is held.', hint = 'Wait until somebody resumes it, then ask again.';
  end if;
end
$$;

-- The job of a call, locked. p_open: it is open, and nobody holds it.
create or replace function lock_external(p_org uuid, p_job uuid, p_open boolean) returns job
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_job job%rowtype;
begin
  select * into the_job from job j where j.org_id = p_org and j.id = p_job and j.kind = 'external' for no key update;
  if not found then
    raise exception using errcode = 'CX404', detail = 'job_not_found', message = 'There is no such job.',
      hint = 'Check the id; it must belong to the org of your key.';
  end if;
  if p_open then
    perform require_open(the_job);
  end if;
  return the_job;
end
$$;

create or replace function require_policies(p_org uuid, p_policies text) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  if policies_version(p_org) is distinct from p_policies then
    raise exception using errcode = 'CX409', detail = 'policy_changed',
      message = 'The policies changed since this call was authorised.', hint = 'It is authorised again.';
  end if;
end
$$;

-- A job waits for one request more, unless another of its calls waits for the same one.
create or replace function wait_external(p_org uuid, p_job uuid, p_approval uuid, p_call uuid) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  more integer := (not exists (
    select from approval_invocation i join tool_call c on c.org_id = i.org_id and c.id = i.call_id and c.status = 'awaiting'
    where i.org_id = p_org and i.approval_id = p_approval and i.job_id = p_job and i.call_id <> p_call))::integer;
begin
  -- Named only where it changes: the state machine looks at every write of it.
  update job j set open_approvals = j.open_approvals + more, status = 'WAITING_FOR_APPROVAL'
  where j.org_id = p_org and j.id = p_job and j.status = 'RUNNING';
  if not found then
    update job j set open_approvals = j.open_approvals + more where j.org_id = p_org and j.id = p_job;
  end if;
end
$$;

-- A new call (p_call: one of record_calls) with its verdict: refused, allowed, waiting for a person, or begun at once. One commit.
-- p_declared: what its agent said of it. With a key that was used before nothing is written, and the answer names the call of then.
create or replace function authorize_call(
  p_org uuid, p_job uuid, p_call jsonb, p_arguments text, p_declared jsonb, p_dispatch_seconds double precision,
  p_event_types text[], p_event_data jsonb[], p_actions text[], p_bodies bytea[], p_more jsonb)
  returns table (
    id uuid, fresh boolean, step_index integer, job_status text, at timestamptz, dispatch_before timestamptz,
    settle_after timestamptz)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  the_job job%rowtype;
  declared record;
  doubt_hash bytea;
  whose uuid;
  event_data jsonb[];
begin
  perform set_config('app.org_id', p_org::text, true);
  select * into strict declared from jsonb_to_record(p_declared) d (
    key text, asked_hash text, sender text, parameters text, read_only boolean, risk text, timeout_seconds double precision,
    declares_risk boolean, policies text, says text, approval_id uuid, callback_id uuid, asker uuid, caused_by uuid, runner text, request_hash text);
  -- Without a runner nothing is doubted, so nothing is kept to recognise it by.
  doubt_hash := case when declared.runner is not null then decode(declared.request_hash, 'hex') end;
  the_job := lock_external(p_org, p_job, false);
  select call_opener(s) into strict whose
  from session s where s.org_id = p_org and s.id = the_job.session_id;
  select x.call_id into id from external_call x
  where x.org_id = p_org and x.agent_id = the_job.agent_id and x.opener = whose and x.key = declared.key;
  fresh := not found;
  if not fresh then
    return next;
    return;
  end if;
  if (declared.key is not null
        and joined_call(p_org, the_job.agent_id, whose, declared.key, decode(declared.request_hash, 'hex')) is not null)
      or (doubt_hash is not null and doubted_call(p_org, p_job, declared.asker, declared.runner, doubt_hash, p_call ->> 'digest',
        decode(p_call ->> 'input_hash', 'hex')) is not null) then
    perform call_changed();
  end if;
  perform require_open(the_job);
  perform require_policies(p_org, declared.policies);
  perform require_atlases(p_org, the_job.session_id, (p_more #>> '{gates,atlases}')::integer);
  at := plane_now();
  id := p_call ->> 'id';
  step_index := coalesce(the_job.step_index, -1) + 1;
  job_status := the_job.status;
  if p_call ->> 'status' = 'intended' then
    dispatch_before := at + make_interval(secs => p_dispatch_seconds);
    settle_after := dispatch_before + make_interval(secs => declared.timeout_seconds);
  end if;
  update job j set step_index = authorize_call.step_index, updated_at = at where j.org_id = p_org and j.id = p_job;
  insert into step (org_id, job_id, step_index, message_seq, response, prompt_tokens, completion_tokens, started_at, created_at)
  values (p_org, p_job, step_index, 0, jsonb_build_object('text', declared.says, 'calls', '[]'::jsonb), 0, 0, at, at);
  if declared.parameters is not null then
    insert into external_tool (org_id, name, digest, parameters, created_at)
    values (p_org, p_call ->> 'tool', p_call ->> 'digest', declared.parameters::jsonb, at) on conflict do nothing;
  end if;
  perform record_calls(
    p_org, p_job, the_job.session_id, jsonb_build_array(p_call || jsonb_build_object('step', step_index)), array[p_arguments],
    null, dispatch_before, at);
  insert into external_call (org_id, call_id, session_id, job_id, agent_id, opener, key, asker, begun_by, caused_by,
    asked_hash, risk, declares_risk, claims_read_only, timeout_seconds, policies, sender, settle_at, callback_id, created_at,
    runner, request_hash, unsettled, may_wait)
  values (p_org, id, the_job.session_id, p_job, the_job.agent_id, whose, declared.key, declared.asker,
    case when dispatch_before is not null then declared.asker end, declared.caused_by, decode(declared.asked_hash, 'hex'),
    declared.risk, coalesce(declared.declares_risk, false), declared.read_only, declared.timeout_seconds, declared.policies, declared.sender, settle_after,
    declared.callback_id, at, declared.runner, doubt_hash, doubt_hash is not null and dispatch_before is not null,
    p_call ->> 'status' = 'awaiting');
  if declared.approval_id is not null then
    perform wait_external(p_org, p_job, declared.approval_id, id);
  end if;
  if p_more ? 'resolution' then
    perform execute_resolution(p_org, (p_more ->> 'resolution')::uuid, id, at);
  end if;
  perform record_more(p_org, p_job, the_job.session_id, p_more, at);
  -- Only here is the number of the step known.
  event_data := array(
    select case when d ? 'step' then d || jsonb_build_object('step', step_index) else d end
    from unnest(p_event_data) with ordinality e (d, n) order by e.n);
  perform session_append(p_org, the_job.session_id, 0, p_event_types,
    array_fill(p_job, array[coalesce(cardinality(p_event_types), 0)]), event_data, p_actions, p_bodies,
    array_fill(p_job, array[cardinality(p_actions)]));
  return next;
end
$$;

-- A call begins (p_intent: one of record_intents, with its `runner`): what allowed it is consumed here. p_seen and p_attempt are what whoever decided it
-- saw; where that changed meanwhile, nothing is written and they look again. Where the same request is in doubt as another call, nothing begins.
create or replace function intend_call(
  p_org uuid, p_call uuid, p_seen text, p_attempt integer, p_sender text, p_policies text, p_dispatch_seconds double precision,
  p_intent jsonb, p_by uuid, p_event_types text[], p_event_data jsonb[], p_actions text[], p_bodies bytea[], p_more jsonb)
  returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  declared external_call%rowtype;
  at timestamptz;
  before timestamptz;
  its_runner text;
begin
  perform set_config('app.org_id', p_org::text, true);
  select * into strict declared from external_call x where x.org_id = p_org and x.call_id = p_call;
  perform lock_external(p_org, declared.job_id, true);
  perform require_person(s) from session s where s.org_id = p_org and s.id = declared.session_id and s.on_behalf_by is not null;
  its_runner := coalesce(p_intent ->> 'runner', declared.runner);
  if declared.request_hash is not null
      and doubted_call(p_org, declared.job_id, declared.asker, its_runner, declared.request_hash, p_intent ->> 'digest',
        decode(p_intent ->> 'input_hash', 'hex'), p_call) is not null then
    raise exception using errcode = 'CX409', detail = 'request_in_doubt',
      message = 'The same call was begun before, under another key, and nobody knows what became of it.',
      hint = 'Wait until that one is settled, then ask again with the same key.';
  end if;
  perform require_policies(p_org, p_policies);
  perform require_atlases(p_org, declared.session_id, (p_more #>> '{gates,atlases}')::integer);
  perform from tool_call c
  where c.org_id = p_org and c.id = p_call and c.status = p_seen and c.attempt = p_attempt for no key update;
  if not found then
    perform call_changed();
  end if;
  at := plane_now();
  before := at + make_interval(secs => p_dispatch_seconds);
  perform record_intents(p_org, declared.job_id, declared.session_id, jsonb_build_array(p_intent), before, at);
  update external_call x
  set sender = p_sender, runner = its_runner, begun_by = p_by, policies = p_policies,
    settle_at = before + make_interval(secs => declared.timeout_seconds), unsettled = declared.request_hash is not null,
    may_wait = false, unknown_reported = false, parks = case when (p_intent ->> 'grant')::boolean then 0 else x.parks end
  where x.org_id = p_org and x.call_id = p_call;
  perform record_more(p_org, declared.job_id, declared.session_id, p_more, at);
  perform session_append(p_org, declared.session_id, 0, p_event_types,
    array_fill(declared.job_id, array[coalesce(cardinality(p_event_types), 0)]), p_event_data, p_actions, p_bodies,
    array_fill(declared.job_id, array[cardinality(p_actions)]));
end
$$;

-- A call that was allowed or approved waits for a person after all, with the same row (p_call: one of record_calls).
create or replace function ask_again(
  p_org uuid, p_job uuid, p_session uuid, p_call jsonb, p_arguments text, p_policies text, p_approval uuid) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform record_calls(p_org, p_job, p_session, jsonb_build_array(p_call), array[p_arguments], null, null, plane_now());
  update external_call x set policies = p_policies, settle_at = null, may_wait = true
  where x.org_id = p_org and x.call_id = (p_call ->> 'id')::uuid;
  perform wait_external(p_org, p_job, p_approval, (p_call ->> 'id')::uuid);
end
$$;

-- What became of a call (p_outcome: one of record_outcomes, with `reported` where its agent says that nobody knows): nobody looks at its
-- time any more.
create or replace function end_call(p_org uuid, p_outcome jsonb, p_result text) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform record_outcomes(p_org, null, jsonb_build_array(p_outcome), array[p_result], plane_now());
  update external_call x
  set settle_at = null, unknown_reported = x.unknown_reported or coalesce((p_outcome ->> 'reported')::boolean, false),
    parks = x.parks + (p_outcome ->> 'status' = 'parked')::integer, may_wait = p_outcome ->> 'status' = 'uncertain',
    given_up = coalesce(p_outcome ->> 'settled_by' = 'fail', false),
    unsettled = x.unsettled and case
      when p_outcome ->> 'status' = 'uncertain' then true
      -- Its session ended before anybody was asked. A tool that declares `fail` has said what a doubt means.
      when p_outcome ->> 'settled_by' = 'fail' then not exists (
        select from tool_call c where c.org_id = p_org and c.id = x.call_id and c.on_uncertain = 'fail')
      else false end
  where x.org_id = p_org and x.call_id = (p_outcome ->> 'id')::uuid;
end
$$;

-- The card that asks whether a call happened, once nobody needs to be asked any more.
create or replace function end_doubt(p_org uuid, p_call uuid, p_reason text) returns uuid
  language plpgsql set search_path = public, pg_temp as $$
declare
  card uuid;
begin
  update approval_request r
  set status = 'cancelled', next_action_at = null, resolved_at = plane_now(), resolution_reason = p_reason
  where r.org_id = p_org and r.status = 'pending' and r.kind = 'uncertain_effect' and exists (
    select from approval_invocation i where i.org_id = p_org and i.approval_id = r.id and i.call_id = p_call)
  returning r.id into card;
  if card is not null then
    insert into approval_event (org_id, approval_id, event_type, payload, created_at)
    values (p_org, card, 'cancelled', jsonb_build_object('reason', p_reason), plane_now());
  end if;
  return card;
end
$$;

-- What became of a call says who opened its session, asked for it or began it: nobody else was there. The opener of a session in which a
-- service works for a person is neither of the two.
create or replace function require_its_agent(p_org uuid, p_call uuid, p_by uuid) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  if not exists (
    select from external_call x where x.org_id = p_org and x.call_id = p_call and p_by in (x.opener, x.asker, x.begun_by)) then
    raise exception using errcode = 'CX403', detail = 'not_its_agent',
      message = 'Only the agent that opened its session, asked for this call or began it says what became of it.',
      hint = 'Where nobody knows whether it happened, answer the card that asks: `cortex approval answer`.';
  end if;
end
$$;

-- What became of a call (p_outcome: one of record_outcomes). It counts also after its job is over: it happened, whatever somebody decided meanwhile. Told twice the
-- same, nothing changes; p_attempt null is the last attempt. Where the session has gates and p_more is null, nobody looked at
-- them: nothing is written, and what that look needs is the answer, with `bound`.
create or replace function settle_call(
  p_org uuid, p_call uuid, p_sees uuid, p_by uuid, p_attempt integer, p_outcome jsonb, p_result text,
  p_event_types text[], p_event_data jsonb[], p_actions text[], p_bodies bytea[], p_more jsonb)
  returns table (session_id uuid, tool text, bound jsonb, at timestamptz)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  declared external_call%rowtype;
  the_job job%rowtype;
  was tool_call%rowtype;
  parks boolean := p_outcome ->> 'status' = 'parked';
  card uuid;
  types text[];
  data jsonb[];
begin
  perform set_config('app.org_id', p_org::text, true);
  select x.* into declared from external_call x join session s on s.org_id = x.org_id and s.id = x.session_id
  where x.org_id = p_org and x.call_id = p_call and (p_sees is null or p_sees in (s.user_account_id, s.opened_by));
  if not found then
    raise exception using errcode = 'CX404', detail = 'call_not_found', message = 'There is no such call.',
      hint = 'Check the id; it must belong to the org of your key.';
  end if;
  the_job := lock_external(p_org, declared.job_id, false);
  perform require_its_agent(p_org, p_call, p_by);
  select * into strict was from tool_call c where c.org_id = p_org and c.id = p_call;
  if parks and was.status = 'parked' and was.attempt = p_attempt then
    return;
  end if;
  if parks and the_job.status in ('COMPLETED', 'FAILED', 'CANCELLED') then
    -- Nobody would begin it again: the verb reports that it failed.
    perform require_open(the_job);
  end if;
  if was.attempt = coalesce(p_attempt, was.attempt) and was.status = p_outcome ->> 'status'
      and was.result is not distinct from p_result::jsonb and was.error is not distinct from p_outcome ->> 'error' then
    -- Its agent has what people answered: see take_answer.
    if declared.unsettled and declared.asker = p_by and not declared.given_up then
      update external_call x set unsettled = false where x.org_id = p_org and x.call_id = p_call;
    end if;
    return;
  end if;
  if was.status in ('completed', 'failed', 'rejected', 'answered') then
    raise exception using errcode = 'CX409', detail = 'call_settled',
      message = format('This call is %s already.', was.status), hint = 'The first outcome stands; read it with `cortex call show`.';
  end if;
  if was.status not in ('intended', 'uncertain', 'cleared', 'parked') then
    raise exception using errcode = 'CX409', detail = 'call_not_begun',
      message = format('This call is %s: it was not begun.', was.status),
      hint = 'Report its intent first, and run nothing before that was answered.';
  end if;
  if parks and (was.status = 'cleared' or (was.status = 'uncertain' and
      (select x.unknown_reported from external_call x where x.org_id = p_org and x.call_id = p_call))) then
    raise exception using errcode = 'CX409', detail = 'call_in_doubt',
      message = 'This attempt was reported with an unknown outcome: it cannot be parked.',
      hint = 'A person answers whether it happened; then do what the `next` of the call says.';
  end if;
  if was.attempt <> coalesce(p_attempt, was.attempt) then
    raise exception using errcode = 'CX409', detail = 'attempt_over',
      message = format('This is the outcome of attempt %s, and the call is at attempt %s.', p_attempt, was.attempt),
      hint = 'Whoever began the last attempt reports its outcome.';
  end if;
  if p_more is null and exists (
      select from session_atlas b where b.org_id = p_org and b.session_id = declared.session_id) then
    return query
      select declared.session_id, was.tool_name, session_bound(p_org, declared.session_id), plane_now();
    return;
  end if;
  card := end_doubt(p_org, p_call, 'its agent reported the outcome');
  perform end_call(p_org, p_outcome, p_result);
  perform record_more(p_org, was.job_id, declared.session_id, p_more, plane_now());
  -- The first event says what became of the call; only here are its step and its tool known.
  types := p_event_types[1:1];
  data := array[p_event_data[1] || jsonb_build_object('step', was.step_index, 'tool', was.tool_name)];
  if card is not null then
    types := types || 'approval_cancelled'::text;
    data := data || jsonb_build_object('approval_id', card);
  end if;
  types := types || p_event_types[2:];
  data := data || p_event_data[2:];
  perform session_append(p_org, declared.session_id, 0, types, array_fill(was.job_id, array[cardinality(types)]), data,
    p_actions, p_bodies, array_fill(was.job_id, array[cardinality(p_actions)]));
  return query select declared.session_id, was.tool_name, null::jsonb, plane_now();
end
$$;

-- Intents whose outcome should be known by now, across orgs. Found here, acted on under their own org.
create or replace function find_due_calls(p_limit integer) returns table (org_id uuid, id uuid, due timestamptz)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select x.org_id, x.call_id, x.settle_at from external_call x
  where x.settle_at <= (select plane_now())
  order by x.settle_at limit p_limit
$$;

call pg_temp.give_functions('cortex_scheduler', 'find_due_calls(integer)');
