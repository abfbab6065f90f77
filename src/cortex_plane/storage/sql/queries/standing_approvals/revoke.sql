update standing_approval set revoked_at = plane_now(), revoked_by = $2, revocation_reason = $3
where id = $1 and revoked_at is null
returning session_id
