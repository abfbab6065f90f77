-- Where every chain must end, in the order of the chains. A session whose head is gone shows up without one.
select o.id as chain_id, h.audit_seq as seq, h.audit_hash as hash
from org o left join org_head h on h.org_id = o.id
union all
select s.id, h.audit_seq, h.audit_hash
from session s left join session_head h on h.org_id = s.org_id and h.session_id = s.id
order by chain_id
