select u.id, u.display_name, u.clearance, u.roles, u.deactivated_at, u.revision, u.created_at, u.updated_at,
  array(select t.team_id from team_member t where t.user_account_id = u.id order by t.created_at, t.team_id)
    as team_ids
from user_account u where u.id = $1
