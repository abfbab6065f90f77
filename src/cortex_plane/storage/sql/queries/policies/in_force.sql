select id as org_id, policy_version, policy_mac from org where id = $1
