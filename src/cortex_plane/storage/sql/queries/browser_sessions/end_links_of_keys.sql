delete from login_link where key_id = any ($1::uuid[]) and used_at is null
