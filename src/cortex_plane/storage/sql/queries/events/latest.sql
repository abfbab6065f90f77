select event_seq from session_head where session_id = $1
