-- name: answer
update inbound_event set answer = $3, answered_at = plane_now()
where connection_id = $1 and event_id = $2 and answer is null
returning true


-- name: claim
insert into inbound_event (org_id, connection_id, event_id, body_hash) values ($1, $2, $3, $4)
on conflict do nothing


-- name: get
select body_hash, answer from inbound_event where connection_id = $1 and event_id = $2
