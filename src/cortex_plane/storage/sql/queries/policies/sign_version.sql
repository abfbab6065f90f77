update policy_version set mac = $2 where version = $1
