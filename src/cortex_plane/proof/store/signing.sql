-- name: active
select id, public_key, sealed from signing_key where retired_at is null


-- name: insert
-- Nothing where somebody else made one at the same moment: theirs it is.
insert into signing_key (org_id, id, public_key, sealed) values ($1, $2, $3, $4)
on conflict (org_id) where retired_at is null do nothing
returning id


-- name: kept
select id, public_key, sealed from signing_key order by created_at, id


-- name: list_all
select id, public_key, created_at, retired_at from signing_key order by created_at, id


-- name: retire
update signing_key set retired_at = plane_now() where retired_at is null returning id, public_key
