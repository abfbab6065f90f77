update channel_connection set set_up_by = set_up_by || $2::uuid where id = $1 and not $2 = any (set_up_by)
