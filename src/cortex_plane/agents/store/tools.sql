-- name: known_risks
select n.name, k.risk from unnest($2::text[]) n (name) cross join lateral (select known_risk($1, n.name) as risk) k
where k.risk is not null


-- name: list_all
-- The newest version of each tool.
select distinct on (app, name) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
  server, remote_name, implementation, hints
from tool_version order by app, name, published_at desc


-- name: named
-- The newest version of the tools of this name, in each app that has one.
select distinct on (app) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
  server, remote_name, implementation, hints
from tool_version where name = $1 and ($2::text is null or app = $2)
order by app, published_at desc


-- name: newest
select app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain, server, remote_name,
  implementation, hints
from tool_version where app = $1 and name = $2
order by published_at desc
limit 1


-- name: of_server
-- The newest version of each tool that a server of an app was last known to offer.
select * from (
  select distinct on (name) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
    server, remote_name, implementation, hints
  from tool_version where app = $1
  order by name, published_at desc
) newest where server = $2


-- name: publish
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


-- name: version
select app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain, server, remote_name,
  implementation, hints
from tool_version where app = $1 and name = $2 and digest = $3


-- name: versions
-- Every version of the tools of an app, newest first.
select v.app, v.name, v.digest, v.description, v.server, v.implementation, v.hints, v.published_at,
  row_number() over (partition by v.name order by v.published_at desc) = 1 as newest,
  row_number() over (partition by v.name order by v.published_at) > 1 as changed
from tool_version v
where v.app = $1
order by v.published_at desc, v.name
limit $2
