-- name: current_secret
select id, sealed from signing_secret where purpose = $1 and retire_at is null


-- name: forget_secrets
delete from signing_secret where purpose = $1 and retire_at <= (select plane_now()) + $2::interval


-- name: forget_tokens
delete from approval_token where expires_at <= (select plane_now()) - $1::interval


-- name: insert_secret
-- Of two that come at the same instant one waits for the other, and then does nothing.
insert into signing_secret (org_id, id, purpose, sealed) values ($1, $2, $3, $4)
on conflict (org_id, purpose) where retire_at is null do nothing
returning created_at


-- name: insert_token
insert into approval_token (org_id, id, approval_id, user_account_id, notification_id, token_hash, version, input_hash,
  expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, decode($8, 'hex'), $9, $10)


-- name: retire_secret
update signing_secret set retire_at = plane_now() + $3::interval
where purpose = $1 and retire_at is null and created_at <= (select plane_now()) - $2::interval
returning retire_at


-- name: void_tokens
update approval_token set used_at = plane_now() where user_account_id = $1 and used_at is null
returning id
