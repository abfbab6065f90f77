update credential_key set converted_at = plane_now() where converted_at is null
