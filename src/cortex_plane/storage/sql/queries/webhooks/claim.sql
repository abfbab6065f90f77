insert into inbound_event (org_id, connection_id, event_id, body_hash) values ($1, $2, $3, $4)
on conflict do nothing
