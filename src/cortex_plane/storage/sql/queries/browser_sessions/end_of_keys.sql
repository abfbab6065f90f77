delete from browser_session where key_id = any ($1::uuid[]) returning id
