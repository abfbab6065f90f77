insert into tool_version (app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict do nothing
