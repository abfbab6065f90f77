update tool_call set status = 'rejected', error = $2, settled_by = 'policy', finished_at = plane_now()
where id = $1 and status in ('allowed', 'approved', 'cleared')
returning id
