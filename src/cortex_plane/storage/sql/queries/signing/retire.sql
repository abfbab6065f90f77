update signing_key set retired_at = plane_now() where retired_at is null returning id, public_key
