select id, public_key, sealed from signing_key where retired_at is null
