insert into policy_version (org_id, version, source, digest, rows, note, applied_by, applied_by_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)
