-- Every entry of one session's chain.
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at from audit_entry
where chain_id = $1
order by org_id, chain_id, seq
