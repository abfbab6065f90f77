delete from tool_server where worker_id = $1
