select n.kind, n.approval_id, n.channel_type, n.connection_id, n.mapping_id, n.user_account_id as member_id,
  u.display_name as member, n.attempts, r.session_id, r.resolved_at, plane_now() as now
from notification n
join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
left join approval_request r on r.org_id = n.org_id and r.id = n.approval_id
where n.id = $1 and n.taken_by = $2
