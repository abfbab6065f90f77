select id, public_key, sealed from signing_key order by created_at, id
