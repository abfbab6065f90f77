-- The newest grant of a call, with the receipt of its approval as it is kept.
select g.expires_at, g.consumed_at, encode(g.input_hash, 'hex') as input_hash, r.body, r.signature, k.id as key_id, k.public_key, k.sealed
from approval_grant g
left join approval_receipt r on r.org_id = g.org_id and r.approval_id = g.approval_id
left join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where g.call_id = $1 order by g.created_at desc limit 1
