-- Looks again later where somebody said something meanwhile or a job is open; true where the session is idle now.
with looked as (
  select s.org_id, s.id, h.last_activity_at + make_interval(secs => coalesce(
      (v.resource_limits ->> 'idle_timeout_seconds')::double precision, 86400)) as idle_at,
    make_interval(secs => coalesce((v.resource_limits ->> 'idle_timeout_seconds')::double precision, 86400)) as patience,
    exists (
      select from job j where j.org_id = s.org_id and j.session_id = s.id
        and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED')) as busy
  from session s
  join session_head h on h.org_id = s.org_id and h.session_id = s.id
  join agent a on a.org_id = s.org_id and a.id = s.agent_id
  join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
  where s.id = $1 and s.status = 'ACTIVE' and s.idle_check_at <= plane_now())
update session s
set idle_check_at = case when l.busy then plane_now() + l.patience else greatest(l.idle_at, plane_now()) end
from looked l where s.id = l.id and s.org_id = l.org_id
returning not l.busy and l.idle_at <= plane_now()
