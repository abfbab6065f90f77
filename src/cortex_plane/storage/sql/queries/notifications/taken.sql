-- What only tells how it ended is no news after a day; an agent that waits for it is told however late.
select n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, n.mapping_id, n.user_account_id as member_id,
  coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward') as member, n.attempts, r.session_id, r.job_id,
  case when n.call_id is null then r.resolved_at end as resolved_at, plane_now() as now
from notification n
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
left join approval_request r on r.org_id = n.org_id and r.id = n.approval_id
where n.id = $1 and n.taken_by = $2
