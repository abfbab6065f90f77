select * from approval_shown a
where a.tool_name = $2 and a.id <> $1 and a.status in ('approved', 'denied') and a.kind = 'call'
order by a.resolved_at desc
limit 5
