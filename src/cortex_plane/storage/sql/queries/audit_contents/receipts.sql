-- Every receipt, with what its request says.
select c.approval_id, c.body, c.signature, c.key_id, r.status, r.version, encode(r.input_hash, 'hex') as input_hash
from approval_receipt c join approval_request r on r.org_id = c.org_id and r.id = c.approval_id
order by c.org_id, c.approval_id
