-- What a link would do now; nothing where it was used, is too old, or is not wanted any more.
select c.id, c.purpose, c.issued_by, c.user_account_id, m.id as mapping_id, m.connection_id, m.channel_user_id as address,
  u.display_name as member, o.name as org, c.org_id, c.expires_at, c.code_hash, c.mac
from identity_code c
join channel_mapping m on m.org_id = c.org_id and m.id = c.mapping_id
join user_account u on u.org_id = c.org_id and u.id = c.user_account_id
join org o on o.id = c.org_id
where c.id = $1 and c.used_at is null and c.expires_at > plane_now() and u.deactivated_at is null
  and m.removed_at is null and m.verified_at is null
