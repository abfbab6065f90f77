select seq, hash, chains, snapshot::text as snapshot,
  coalesce(pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(pg_current_snapshot()), true) as foreign_snapshot
from audit_root order by seq desc limit 1
