select c.*, plane_now() as now, h.event_seq
from external_call_shown c join session_head h on h.org_id = c.org_id and h.session_id = c.session_id
where c.id = $1 and ($2::uuid is null or $2 in (c.user_account_id, c.opened_by))
