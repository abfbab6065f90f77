update tool_call
set status = $2, result = $3, error = $4, settled_by = $5,
  finished_at = case when $2 in ('completed', 'failed') then plane_now() end
where id = $1 and status = 'uncertain'
returning id
