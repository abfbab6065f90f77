-- name: get
select provider, last_characters, set_by, created_at, updated_at from model_key where provider = $1


-- name: list_all
select provider, last_characters, set_by, created_at, updated_at from model_key order by provider


-- name: opened
select sealed from model_key where provider = $1


-- name: put
insert into model_key (org_id, provider, sealed, last_characters, set_by)
values ($1, $2, $3, $4, $5)
on conflict (org_id, provider) do update
set sealed = excluded.sealed, last_characters = excluded.last_characters, set_by = excluded.set_by, updated_at = plane_now()
returning provider, last_characters, set_by, created_at, updated_at


-- name: remove
delete from model_key where provider = $1 returning last_characters
