-- Every link that was sent for this mapping: a mail that came twice works once.
update identity_code set used_at = plane_now() where mapping_id = $1 and used_at is null
