delete from agent where id = $1 returning id
