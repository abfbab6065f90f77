select from_member_id, from_member, to_member_id, to_member, to_clearance, reason, automatic, created_at as at
from approval_delegation where approval_id = $1 order by id
