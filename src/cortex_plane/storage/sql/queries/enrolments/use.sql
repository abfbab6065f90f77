-- One of two that come at the same instant waits for the other's row, and then finds it used.
update enrolment_code set used_at = plane_now()
where id = $1 and used_at is null and expires_at > plane_now()
returning issuer_id
