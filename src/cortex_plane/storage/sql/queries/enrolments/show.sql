-- What a code would do now; nothing where it was used, is too old, or its person is deactivated.
select c.id, c.user_account_id as member_id, u.display_name as member, o.name as org, c.issued_by,
  c.org_id, c.user_account_id, c.issuer_id, c.key_id, c.expires_at, c.code_hash, c.mac
from enrolment_code c
join user_account u on u.org_id = c.org_id and u.id = c.user_account_id
join org o on o.id = c.org_id
where c.id = $1 and c.used_at is null and c.expires_at > plane_now() and u.deactivated_at is null
