insert into model_key (org_id, provider, sealed, last_characters, set_by)
values ($1, $2, $3, $4, $5)
on conflict (org_id, provider) do update
set sealed = excluded.sealed, last_characters = excluded.last_characters, set_by = excluded.set_by, updated_at = plane_now()
returning provider, last_characters, set_by, created_at, updated_at
