-- What was allowed or approved is asked for once more, with the same row.
with judged as (
  insert into call_authorization (org_id, id, job_id, tool_name, input_hash, verdict, rule, created_at)
  select c.org_id, $2, c.job_id, c.tool_name, c.input_hash, 'requires_approval', $3, plane_now() from tool_call c where c.id = $1)
, told as (
  update external_call set policies = $4, settle_at = null where call_id = $1)
update tool_call set status = 'awaiting', authorization_id = $2, error = null, settled_by = null
where id = $1 and status in ('allowed', 'approved', 'cleared')
returning wait_external($5, job_id, $6, id)
