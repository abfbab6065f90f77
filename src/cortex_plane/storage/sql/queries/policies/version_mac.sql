select mac from policy_version where version = $1
