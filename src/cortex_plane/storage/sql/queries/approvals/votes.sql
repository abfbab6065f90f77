select version, user_account_id as member_id, member, decision, reason, channel, created_at
from approval_vote where approval_id = $1 order by created_at
