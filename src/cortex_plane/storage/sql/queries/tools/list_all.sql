-- The newest version of each tool.
select distinct on (app, name) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain
from tool_version order by app, name, published_at desc
