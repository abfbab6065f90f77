insert into channel_connection (org_id, id, channel_type, name) values ($1, $2, 'email', 'email')
on conflict (org_id, channel_type, name) do nothing
returning id
