select version, user_account_id as member_id, member, decision, reason, channel, created_at,
  voters_of(org_id, user_account_id, channel, created_at) as behind
from approval_vote where approval_id = $1 order by created_at, user_account_id
