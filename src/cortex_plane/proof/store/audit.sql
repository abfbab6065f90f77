-- name: append_to_org
select org_append($1, $2, $3)


-- name: append_to_session
select session_append($1, $2, 0, $3, $4, $5, $6, $7, $8)


-- name: entries
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at
from audit_entry where chain_id = $1 and seq > $2
order by seq
limit $3


-- name: everything
-- Every entry, chain after chain, in the order of the primary key: nothing is sorted, so the first row comes at once.
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at from audit_entry
order by org_id, chain_id, seq


-- name: head_of_session
-- Where one session's chain must end.
select s.id as chain_id, h.audit_seq as seq, h.audit_hash as hash
from session s left join session_head h on h.org_id = s.org_id and h.session_id = s.id
where s.id = $1


-- name: heads
-- Where every chain must end, in the order of the chains. A session whose head is gone shows up without one.
select o.id as chain_id, h.audit_seq as seq, h.audit_hash as hash
from org o left join org_head h on h.org_id = o.id
union all
select s.id, h.audit_seq, h.audit_hash
from session s left join session_head h on h.org_id = s.org_id and h.session_id = s.id
order by chain_id


-- name: now
select plane_now()


-- name: of_session
-- Every entry of one session's chain.
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at from audit_entry
where chain_id = $1
order by org_id, chain_id, seq
