select id, public_key, created_at, retired_at from signing_key order by created_at, id
