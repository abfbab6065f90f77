-- Of two that come at the same instant one waits for the other, and then does nothing.
insert into signing_secret (org_id, id, purpose, sealed) values ($1, $2, $3, $4)
on conflict (org_id, purpose) where retire_at is null do nothing
returning created_at
