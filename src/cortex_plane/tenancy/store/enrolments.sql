-- name: end_of_keys
delete from enrolment_code where key_id = any ($1::uuid[]) and used_at is null
returning id


-- name: insert
insert into enrolment_code (org_id, id, user_account_id, code_hash, issuer_id, issued_by, key_id, expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)


-- name: show
-- What a code would do now; nothing where it was used, is too old, or its person is deactivated.
select c.id, c.user_account_id as member_id, u.display_name as member, o.name as org, c.issued_by,
  c.org_id, c.user_account_id, c.issuer_id, c.key_id, c.expires_at, c.code_hash, c.mac
from enrolment_code c
join user_account u on u.org_id = c.org_id and u.id = c.user_account_id
join org o on o.id = c.org_id
where c.id = $1 and c.used_at is null and c.expires_at > plane_now() and u.deactivated_at is null


-- name: use
-- One of two that come at the same instant waits for the other's row, and then finds it used.
update enrolment_code set used_at = plane_now()
where id = $1 and used_at is null and expires_at > plane_now()
returning issuer_id


-- name: void
-- Only the newest works, and what is over goes with it.
delete from enrolment_code where user_account_id = $1 and (used_at is null or expires_at < plane_now() - interval '1 day')
returning id
