delete from team where id = $1 returning id
