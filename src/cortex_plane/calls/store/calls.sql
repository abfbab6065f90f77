-- name: ask_again
-- What was allowed or approved is asked for once more, with the same row.
with judged as (
  insert into call_authorization (org_id, id, job_id, tool_name, input_hash, verdict, rule, created_at)
  select c.org_id, $2, c.job_id, c.tool_name, c.input_hash, 'requires_approval', $3, plane_now() from tool_call c where c.id = $1)
, told as (
  update external_call set policies = $4, settle_at = null where call_id = $1)
update tool_call set status = 'awaiting', authorization_id = $2, error = null, settled_by = null
where id = $1 and status in ('allowed', 'approved', 'cleared')
returning wait_external($5, job_id, $6, id)


-- name: call_back
update external_call set callback_id = $2 where call_id = $1


-- name: complete
update job set status = 'COMPLETED', result = $2, running_seconds = extract(epoch from plane_now() - created_at)
where id = $1 and kind = 'external' and status = 'RUNNING'
returning id


-- name: doubt
-- An intent whose outcome nobody knows.
with looked as (
  update external_call set settle_at = null where call_id = $1)
update tool_call set status = $2, error = $3, settled_by = case when $2 = 'failed' then 'fail' end,
  finished_at = case when $2 = 'failed' then plane_now() end
where id = $1 and status in ('intended', 'uncertain')
returning id


-- name: get
select c.*
from external_call_shown c
where c.id = $1 and ($2::uuid is null or $2 in (c.user_account_id, c.opened_by))


-- name: grant
-- The newest grant of a call, with the receipt of its approval as it is kept.
select g.expires_at, g.consumed_at, encode(g.input_hash, 'hex') as input_hash, r.body, r.signature, k.id as key_id, k.public_key, k.sealed
from approval_grant g
left join approval_receipt r on r.org_id = g.org_id and r.approval_id = g.approval_id
left join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where g.call_id = $1 order by g.created_at desc limit 1


-- name: list_page
select c.id, c.session_id, c.agent, c.tool, c.status, c.verdict, c.rule, c.attempt, c.key, c.error, c.created_at, c.finished_at
from external_call_shown c
where ($1::timestamptz is null or (c.created_at, c.id) < ($1, $2::uuid))
  and ($4::uuid is null or c.session_id = any (array(
    select s.id from session s where s.user_account_id = $4 or s.opened_by = $4)))
  and ($5::uuid is null or c.session_id = $5)
  and ($6::text is null or c.status = $6)
order by c.created_at desc, c.id desc
limit $3


-- name: lock_asking
-- The job of a call that is about to ask, under its lock; refused where it is over or held. Whoever asks is a cause too:
-- staff may ask in sessions of others.
select j.session_id, j.caused_by, c.causes, c.caused, s.user_account_id as owner_id,
  coalesce(j.step_index, -1) + 1 as step_index, j.status, plane_now() as now
from lock_external($1, $2, $3) j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, 0, $4::uuid[]) c


-- name: of_session
-- The one job of an external session.
select id, status, holds from job where session_id = $1 and kind = 'external'


-- name: reject
update tool_call set status = 'rejected', error = $2, settled_by = 'policy', finished_at = plane_now()
where id = $1 and status in ('allowed', 'approved', 'cleared')
returning id
