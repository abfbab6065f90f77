-- By its id or its name. A name is given once for each kind of channel: a webhook comes first.
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now
from channel_connection where name = $1 or id::text = lower($1)
order by channel_type = 'webhook' desc, id::text = lower($1) desc
limit 1
