select policy_version from org where id = $1 and policy_mac is null
