insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, max_retries, resubmitted_from, app,
  holds, held_at, runnable_at, caused_by, policies, status, submitted_by)
select $1, $2, s.id, a.id, a.config_version, $8, $5, $6, $7, case when $8 = 'external' then 'external' else coalesce(v.skill_config ->> 'app', 'plane') end,
  case when s.held_at is null then '{}' else array['session'] end, s.held_at,
  case when s.held_at is null then plane_now() end, $9::uuid, $10::jsonb,
  case when $8 = 'external' then 'RUNNING' else 'PENDING' end, $11::uuid
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
join session s on s.org_id = a.org_id and s.id = $3
where a.id = $4
