-- An intent whose outcome nobody knows.
with looked as (
  update external_call set settle_at = null where call_id = $1)
update tool_call set status = $2, error = $3, settled_by = case when $2 = 'failed' then 'fail' end,
  finished_at = case when $2 = 'failed' then plane_now() end
where id = $1 and status in ('intended', 'uncertain')
returning id
