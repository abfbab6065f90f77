-- Every entry, chain after chain, in the order of the primary key: nothing is sorted, so the first row comes at once.
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at from audit_entry
order by org_id, chain_id, seq
