select version, digest, rows, note, applied_by, created_at from policy_version
where $1::bigint is null or version < $1
order by version desc
limit $2
