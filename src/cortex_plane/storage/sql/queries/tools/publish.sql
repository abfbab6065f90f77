-- A version that is known and newest already stays as it is. Returns the digest of the one before, where this is newer.
with newest as (
  select v.digest from tool_version v where v.app = $1 and v.name = $2 order by v.published_at desc limit 1
), made as (
  insert into tool_version (
    app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain, server, remote_name,
    implementation, hints)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
  on conflict (app, name, digest) do update set published_at = plane_now()
    where excluded.digest is distinct from (select n.digest from newest n)
  returning digest
)
select (select n.digest from newest n) as before from made
