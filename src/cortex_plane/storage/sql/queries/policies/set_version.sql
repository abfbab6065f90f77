update org set policy_version = $2, policy_mac = $3 where id = $1
