select version from policy_version where mac is null order by version limit 20
