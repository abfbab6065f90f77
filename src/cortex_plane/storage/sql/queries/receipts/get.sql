select r.approval_id, r.body, r.signature, r.key_id, k.public_key, r.created_at
from approval_receipt r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.approval_id = $1
