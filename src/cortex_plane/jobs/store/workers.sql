-- name: key_fingerprint
select fingerprint from plane_key


-- name: list_all
select w.id, w.name, w.host, w.pid, w.apps, w.concurrency, w.started_at, w.expires_at, w.stopped_at,
  w.stopped_at is null and w.expires_at > plane_now() as alive
from worker w order by w.started_at desc limit 500


-- name: remember_key
insert into plane_key (fingerprint) values ($1) on conflict do nothing
