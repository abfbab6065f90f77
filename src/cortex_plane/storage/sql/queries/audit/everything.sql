-- Every chain beside its head, in one snapshot: entries without a head and heads without entries show up too.
with head as (
  select org_id as chain_id, audit_seq, audit_hash from org_head
  union all
  select session_id, audit_seq, audit_hash from session_head
)
select coalesce(h.chain_id, e.chain_id) as chain_id, h.audit_seq as head_seq, h.audit_hash as head_hash,
  e.session_id, e.seq, e.action, e.body, e.body_hash, e.hash, e.created_at
from head h full join audit_entry e on e.chain_id = h.chain_id
order by 1, e.seq
