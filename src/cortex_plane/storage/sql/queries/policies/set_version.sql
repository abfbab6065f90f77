update org set policy_version = $2 where id = $1
