-- What the trail says of the rows of each version; entries of earlier releases say nothing.
select b #>> '{data,version}' as version, b #>> '{data,rows_digest}' as digest
from audit_entry e cross join lateral entry_body(e.body) b
where e.action = 'policy_applied' and e.session_id is null and b #>> '{data,rows_digest}' is not null
