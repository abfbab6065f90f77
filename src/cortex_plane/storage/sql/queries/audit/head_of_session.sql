-- Where one session's chain must end.
select s.id as chain_id, h.audit_seq as seq, h.audit_hash as hash
from session s left join session_head h on h.org_id = s.org_id and h.session_id = s.id
where s.id = $1
