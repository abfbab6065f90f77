delete from browser_session where id = $1 returning id
