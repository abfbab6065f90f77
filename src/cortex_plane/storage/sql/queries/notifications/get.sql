select n.id, n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, c.name as connection, n.user_account_id as member_id,
  coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward') as member, n.address, n.status, n.attempts, n.desired_version, n.rendered_version, n.next_attempt_at,
  n.last_error, n.message_ref, n.sent_at, n.created_at
from notification n
join channel_connection c on c.org_id = n.org_id and c.id = n.connection_id
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
where n.id = $1
