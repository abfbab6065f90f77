select r.org_id, r.seq, r.hash, r.body, r.signature, r.key_id, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.seq > $1
order by r.seq
limit $2
