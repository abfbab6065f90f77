-- Whoever says, or has proven, that this address is theirs.
select m.id, m.user_account_id, m.verified_at, u.display_name, u.deactivated_at, u.roles = '{guest}' as is_guest,
  coalesce(m.metadata ->> 'purpose' = 'invitation', false) as invited
from channel_mapping m join user_account u on u.org_id = m.org_id and u.id = m.user_account_id
where m.org_id = $1 and m.connection_id = $2 and m.channel_user_id = $3 and m.removed_at is null
order by m.verified_at is null, m.created_at, m.id
