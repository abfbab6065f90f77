insert into tool_confirmation (
  org_id, id, app, tool_name, digest, read_only, idempotent, risk, note, confirmed_by, confirmed_by_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
