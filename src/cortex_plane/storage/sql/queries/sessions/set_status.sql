update session set status = $2, revision = revision + 1 where id = $1
