select c.*
from external_call_shown c
where c.id = $1 and ($2::uuid is null or $2 in (c.user_account_id, c.opened_by))
