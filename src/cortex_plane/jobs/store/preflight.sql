-- name: parked
-- Jobs of one status that were begun and that nobody runs, newest first, with the response in which each stands and its calls:
-- of a model's response all of them, of a code agent those that have no outcome. An agent that runs elsewhere is resumed there.
select j.id, j.session_id, j.agent_id, a.slug as agent, j.agent_version, j.kind, j.app, j.status, j.holds, j.payload,
  j.checkpoint::text as checkpoint, j.checkpoint_mac, v.model_config, v.skill_config, v.resource_limits, j.created_at,
  last.response, made.calls
from job j
join agent a on a.org_id = j.org_id and a.id = j.agent_id
join agent_version v on v.org_id = j.org_id and v.agent_id = j.agent_id and v.version = j.agent_version
join session s on s.org_id = j.org_id and s.id = j.session_id and s.kind <> 'external'
left join lateral (
  select t.step_index, t.response from step t
  where t.org_id = j.org_id and t.job_id = j.id
  order by t.step_index desc limit 1) last on true
cross join lateral (
  select coalesce(jsonb_agg(jsonb_build_object(
    'id', c.id, 'job_id', c.job_id, 'step_index', c.step_index, 'position', c.position, 'tool_name', c.tool_name,
    'tool_digest', c.tool_digest, 'arguments', c.arguments, 'read_only', c.read_only, 'on_uncertain', c.on_uncertain,
    'input_hash', encode(c.input_hash, 'hex'), 'edited', c.edited, 'status', c.status, 'attempt', c.attempt,
    'dispatch_before', c.dispatch_before, 'settle_after', c.settle_after, 'result', null, 'result_id', null,
    'error', c.error, 'settled_by', c.settled_by, 'created_at', c.created_at, 'finished_at', c.finished_at)
    order by c.step_index, c.position), '[]') as calls
  from tool_call c
  where c.org_id = j.org_id and c.job_id = j.id
    and (c.finished_at is null or (c.step_index = last.step_index and not v.skill_config ? 'run'))) made
where ($1::timestamptz is null or (j.created_at, j.id) < ($1, $2::uuid))
  and j.status = $4 and j.worker_id is null and j.epoch > 0
order by j.created_at desc, j.id desc
limit $3
