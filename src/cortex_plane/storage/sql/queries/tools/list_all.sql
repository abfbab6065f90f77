-- The newest version of each tool.
select distinct on (app, name) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
  server, remote_name, implementation, hints
from tool_version order by app, name, published_at desc
