-- The newest version of the tools of this name, in each app that has one.
select distinct on (app) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
  server, remote_name, implementation, hints
from tool_version where name = $1 and ($2::text is null or app = $2)
order by app, published_at desc
