update org set confirmation_version = confirmation_version + 1 where id = $1
