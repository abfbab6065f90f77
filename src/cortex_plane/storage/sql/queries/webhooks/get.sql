select body_hash, answer from inbound_event where connection_id = $1 and event_id = $2
