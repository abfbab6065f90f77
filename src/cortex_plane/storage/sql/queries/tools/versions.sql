-- Every version of the tools of an app, newest first.
select v.app, v.name, v.digest, v.description, v.server, v.implementation, v.hints, v.published_at,
  row_number() over (partition by v.name order by v.published_at desc) = 1 as newest,
  row_number() over (partition by v.name order by v.published_at) > 1 as changed
from tool_version v
where v.app = $1
order by v.published_at desc, v.name
limit $2
