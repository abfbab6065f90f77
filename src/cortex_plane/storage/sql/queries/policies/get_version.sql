select version, source, digest, rows, note, applied_by, created_at from policy_version where version = $1
