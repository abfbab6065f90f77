-- The org stands still while its rows are replaced.
select o.policy_version, (select coalesce(max(v.version), 0) from policy_version v where v.org_id = o.id) as newest
from org o where o.id = $1 for no key update of o
