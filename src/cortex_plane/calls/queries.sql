-- name: complete_job
update job set status = 'COMPLETED', result = $2, running_seconds = extract(epoch from plane_now() - created_at)
where id = $1 and kind = 'external' and status = 'RUNNING'
returning id


-- name: find_hook_call
-- The call that a report of a hook is about: that of its key, or without one the oldest that was begun with these arguments ($5: their
-- hash with the tool; $6: their hash alone, which edited ones have), first those of its own process ($7).
select c.id, c.attempt, x.runner
from tool_call c
join external_call x on x.org_id = c.org_id and x.call_id = c.id
where c.id = case when $3::text is not null then coalesce(
    (select x.call_id from external_call x where x.agent_id = (select s.agent_id from session s where s.id = $1) and x.opener = $2 and x.key = $3),
    (select k.call_id from external_call_key k where k.agent_id = (select s.agent_id from session s where s.id = $1) and k.opener = $2
       and k.key = $3))
  else (
    select x.call_id from job j
    join external_call x on x.org_id = j.org_id and x.job_id = j.id
    join tool_call o on o.org_id = x.org_id and o.id = x.call_id
    where j.session_id = $1 and j.kind = 'external' and o.status = 'intended'
      and (x.request_hash = $5 or (o.edited and o.tool_name = $4 and o.input_hash = $6))
    order by (x.runner is distinct from $7), o.step_index limit 1) end


-- name: outlives_session
-- Whether a call that nobody knows the outcome of is in doubt for later sessions of its agent, too.
select unsettled from external_call where call_id = $1


-- name: is_run_elsewhere
-- Whether a call has begun in another process than $2, and nobody has reported what became of it.
select exists (
  select from external_call x join tool_call c on c.org_id = x.org_id and c.id = x.call_id
  where x.call_id = $1 and c.status = 'intended' and x.runner is distinct from $2)


-- name: take_answer
-- Its agent has what people answered about a call: the same request later is another one. A doubt that the plane gave up on stays. The same
-- try ($3), repeated because its response was lost, has it again.
update external_call x set unsettled = false, answer_sender = $3
from tool_call c
where x.call_id = $1 and x.asker = $2 and (x.unsettled or x.answer_sender = $3) and not x.given_up
  and c.org_id = x.org_id and c.id = x.call_id and c.status in ('completed', 'failed')
returning x.call_id


-- name: find_first_waiting
-- The call of a job that waits for a person longest. Only those that may wait are looked at: a session may have thousands of others.
with waiting as materialized (select x.org_id, x.call_id from external_call x where x.job_id = $1 and x.may_wait)
select c.id, c.tool_name from waiting x
cross join lateral (select * from tool_call c where c.org_id = x.org_id and c.id = x.call_id and c.status = 'awaiting' limit 1) c
order by c.step_index limit 1


-- name: find_waiting_call
-- A call of the session that waits for a person, or may begin since one answered and has not, and that this request is: the same tool and
-- arguments ($3), or those that an approver made of them ($4: the digest of the tool, $5), asked for by the same identity. No row where the
-- key has a call. Only calls that may wait are looked at, as in find_first_waiting.
with waiting as materialized (
  select x.* from external_call x
  where x.job_id = (select j.id from job j where j.session_id = $1 and j.kind = 'external') and x.may_wait)
select x.call_id, x.job_id from waiting x
cross join lateral (select * from tool_call c where c.org_id = x.org_id and c.id = x.call_id limit 1) c
where x.asker = $2 and c.status in ('awaiting', 'approved', 'cleared')
  and (x.request_hash = $3 or (c.edited and c.tool_digest = $4 and c.input_hash = $5))
  and not exists (select from external_call e
    where e.org_id = x.org_id and e.agent_id = x.agent_id and e.opener = x.opener and e.key = $6)
  and not exists (select from external_call_key k
    where k.org_id = x.org_id and k.agent_id = x.agent_id and k.opener = x.opener and k.key = $6)
order by c.step_index limit 1


-- name: get_call
select c.*
from external_call_shown c
where c.id = $1 and ($2::uuid is null or $2 in (c.user_account_id, c.opened_by))


-- name: get_grant
-- The newest grant of a call, with the receipt of its approval as it is kept.
select g.expires_at, g.consumed_at, encode(g.input_hash, 'hex') as input_hash, r.body, r.signature, k.id as key_id, k.public_key, k.sealed,
  x.parks
from approval_grant g
join external_call x on x.org_id = g.org_id and x.call_id = g.call_id
left join approval_receipt r on r.org_id = g.org_id and r.approval_id = g.approval_id
left join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where g.call_id = $1 order by g.created_at desc limit 1


-- name: list_asking_sessions
-- Of the calls that a connection made about something that its vendor holds: those that people are still asked about.
select x.session_id from external_call x
join tool_call c on c.org_id = x.org_id and c.id = x.call_id
where x.callback_id = $1 and x.key = $2 and c.status = 'awaiting'


-- name: list_calls
-- The page is found in the table itself, in the order of its index, and then looked up row by row (see list_approvals). The status is the
-- tool call's, and it would cost every step to index it: one page looks at 500 calls at most. Where it is not full after them, the last
-- row is no call, but where the next page starts.
with look as not materialized (
  select x.org_id, x.call_id, x.session_id, x.agent_id, x.key, x.created_at from external_call x
  where (x.created_at, x.call_id) < (coalesce($1::timestamptz, 'infinity'), coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    and ($5::uuid is null or x.session_id = $5)
  order by x.created_at desc, x.call_id desc
  limit 500)
, page as materialized (
  select x.* from look x
  where ($4::uuid is null or (
      select $4 in (s.user_account_id, s.opened_by) from session s where s.org_id = x.org_id and s.id = x.session_id))
    and ($6::text is null or (select c.status = $6 from tool_call c where c.org_id = x.org_id and c.id = x.call_id))
  order by x.created_at desc, x.call_id desc
  limit $3)
select x.call_id as id, x.session_id, a.slug as agent, c.tool_name as tool, c.status, c.verdict, c.rule, c.attempt, x.key, c.error,
  x.created_at, c.finished_at
from page x
join agent a on a.org_id = x.org_id and a.id = x.agent_id
cross join lateral (select * from tool_call c where c.org_id = x.org_id and c.id = x.call_id limit 1) c
union all
select e.call_id, null, null, null, null, null, null, null, null, null, e.created_at, null
from (select count(*) as calls from page) p
cross join lateral (
  select x.call_id, x.created_at from look x where p.calls < $3 order by x.created_at desc, x.call_id desc offset 499 limit 1) e
order by created_at desc, id desc, status nulls last


-- name: list_decided_calls
-- Calls of agents that run elsewhere whose request has ended since $5, as far as $4 sees them (null: all), in the order in which that happened.
select i.call_id as id, r.resolved_at as created_at, r.resolved_at as decided_at, x.session_id, s.outside_id, a.slug as agent,
  c.tool_name as tool, x.key, c.status, r.id as approval_id, r.kind, r.status as decision,
  case when s.on_behalf_by is not null then s.user_account_id end as on_behalf_of
from approval_request r
join approval_invocation i on i.org_id = r.org_id and i.approval_id = r.id
join external_call x on x.org_id = i.org_id and x.call_id = i.call_id
join tool_call c on c.org_id = x.org_id and c.id = x.call_id
join session s on s.org_id = x.org_id and s.id = x.session_id
join agent a on a.org_id = x.org_id and a.id = x.agent_id
where r.resolved_at is not null and r.resolved_at >= coalesce($5::timestamptz, '-infinity')
  and ($1::timestamptz is null or (r.resolved_at, i.call_id) > ($1, $2::uuid))
  and ($4::uuid is null or $4 in (s.user_account_id, s.opened_by)) and ($6::uuid is null or x.agent_id = $6)
order by r.resolved_at, i.call_id
limit $3


-- name: lock_asking
-- The job of a call that is about to ask, under its lock; refused where it is over or held. Whoever asks is a cause too:
-- staff may ask in sessions of others.
select j.session_id, j.caused_by, c.causes, c.caused, s.user_account_id as owner_id,
  coalesce(j.step_index, -1) + 1 as step_index, j.status, plane_now() as now
from lock_external($1, $2, $3) j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, 0, $4::uuid[]) c


-- name: list_session_calls
-- The one job of an external session.
select id, status, holds from job where session_id = $1 and kind = 'external'


-- name: count_live
-- How many resolutions of a session hold, counted up to $2.
select count(*) from (
  select from resolution r where r.session_id = $1 and r.expires_at > (select plane_now()) limit $2) live


-- name: get_resolution
-- For whoever asked; with null for anybody who sees the whole org.
select r.id, r.trace_id, r.session_id, r.request, case when r.emptied_at is null then r.answer end as answer, r.atlases,
  r.expires_at, r.expires_at <= plane_now() as expired
from resolution r where r.id = $1 and ($2::uuid is null or r.asker = $2)


-- name: get_bench_agent
-- An agent as its next session has it.
select a.slug, array_remove(array[t.id, t.parent_id], null) as teams, v.skill_config
from agent a
join team t on t.org_id = a.org_id and t.id = a.team_id
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where a.id = $1 or a.slug = $2


-- name: list_governed
-- What the permissions of a session depend on: its agent as its newest job has it, and what is published for its app.
select s.kind, a.slug as agent, array_remove(array[t.id, t.parent_id], null) as teams, v.skill_config,
  policies_version(s.org_id) as policies, session_bound(s.org_id, s.id) as bound, plane_now() as now, j.policies as request_policies
from session s
join agent a on a.org_id = s.org_id and a.id = s.agent_id
join team t on t.org_id = a.org_id and t.id = a.team_id
left join lateral (
  select j.agent_version, j.policies from job j where j.org_id = s.org_id and j.session_id = s.id
  order by j.created_at desc, j.id desc limit 1) j on true
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = coalesce(j.agent_version, a.config_version)
where s.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))


-- name: list_messages_heard
-- Whether this goal was named in the session before.
select exists (select from resolution r where r.session_id = $1 and r.goal_hash = $2)


-- name: insert_resolution
insert into resolution (org_id, id, trace_id, session_id, asker, goal_hash, request, answer, atlases, expires_at, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)


-- name: list_resolution_tools
-- The newest version of each tool of an app.
select distinct on (name) name, digest, read_only, risk, declares_risk, server
from known_tool where app = $1
order by name, published_at desc
limit 1000


-- name: list_resolved_calls
-- The resolution that a call was executed under; no row where there is none.
select c.resolution_id from resolution_call c where c.call_id = $1


-- name: record_reported_usage
-- What the agent of an external session says that a model took. It is counted, and no budget of the plane's own workers is spent by it.
select record_usage(j.org_id, j.id, j.session_id, jsonb_build_array(jsonb_build_object(
  'id', $2::uuid, 'step_index', coalesce(j.step_index, 0), 'purpose', 'reported', 'model', $3::text, 'prompt_tokens', $4::bigint,
  'completion_tokens', $5::bigint, 'cache_read_tokens', $6::bigint, 'cache_write_tokens', $7::bigint, 'cost_micros', $8::bigint,
  'estimated', false, 'seconds', $9::double precision)), plane_now())
from job j where j.id = $1


-- name: first_call_of
-- The call that an approval was asked for; later ones joined it.
select i.call_id from approval_invocation i where i.approval_id = $1 order by i.created_at, i.call_id limit 1
