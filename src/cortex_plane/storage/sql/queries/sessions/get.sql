select s.id, s.kind, s.user_account_id, s.agent_id, s.status, s.context, s.title, s.origin_channel_mapping_id, s.held_at, s.hold_reason,
  s.revision, h.last_activity_at, s.created_at, s.updated_at
from session s join session_head h on h.org_id = s.org_id and h.session_id = s.id
where s.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))
