select u.id, u.display_name, u.clearance, u.roles, u.deactivated_at, u.revision, u.created_at, u.updated_at,
  array(select t.team_id from team_member t where t.user_account_id = u.id order by t.created_at, t.team_id)
    as team_ids
from user_account u
where ($1::timestamptz is null or (u.created_at, u.id) < ($1, $2::uuid))
  and ($4::text is null or $4 = any (u.roles))
order by u.created_at desc, u.id desc
limit $3
