-- The newest version of each tool of an app.
select distinct on (name) name, digest, read_only, risk, server
from tool_version where app = $1
order by name, published_at desc
limit 1000
