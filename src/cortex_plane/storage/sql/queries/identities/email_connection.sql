-- Where the org's mail goes out; the oldest, where there are several.
select id, channel_type, name, disabled_at from channel_connection
where channel_type = 'email'
order by disabled_at is not null, created_at, id
limit 1
