select w.id, w.name, w.host, w.pid, w.apps, w.concurrency, w.started_at, w.expires_at, w.stopped_at,
  w.stopped_at is null and w.expires_at > plane_now() as alive
from worker w order by w.started_at desc limit 500
