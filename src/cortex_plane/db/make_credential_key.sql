-- Not with a master key that the plane has replaced: a rotation that begins now waits, or this waits for it.
with plane as (select fingerprint from plane_key for share)
insert into credential_key (sealed) select $1 where not exists (select from plane where fingerprint <> $2) on conflict do nothing
