-- What holds for this tool, if anything, holds no more.
update tool_confirmation set revoked_at = plane_now(), revoked_by = $3
where app = $1 and tool_name = $2 and revoked_at is null
returning id
