select r.seq, r.previous, r.hash, r.body, r.signature, r.key_id, r.chains, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.seq < $1
order by r.seq desc
limit $2
