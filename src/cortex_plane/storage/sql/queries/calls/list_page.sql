select c.id, c.session_id, c.agent, c.tool, c.status, c.verdict, c.rule, c.attempt, c.key, c.error, c.created_at, c.finished_at
from external_call_shown c
where ($1::timestamptz is null or (c.created_at, c.id) < ($1, $2::uuid))
  and ($4::uuid is null or c.session_id = any (array(
    select s.id from session s where s.user_account_id = $4 or s.opened_by = $4)))
  and ($5::uuid is null or c.session_id = $5)
  and ($6::text is null or c.status = $6)
order by c.created_at desc, c.id desc
limit $3
