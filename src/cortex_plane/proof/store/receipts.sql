-- name: get
select r.approval_id, r.body, r.signature, r.key_id, k.public_key, r.created_at
from approval_receipt r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.approval_id = $1


-- name: insert
insert into approval_receipt (org_id, approval_id, key_id, body, signature, created_at) values ($1, $2, $3, $4, $5, $6)
