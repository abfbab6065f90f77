insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, max_retries, resubmitted_from)
select $1, $2, $3, a.id, a.config_version, $8, $5, $6, $7 from agent a where a.id = $4
