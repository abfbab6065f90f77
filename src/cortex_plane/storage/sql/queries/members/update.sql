update user_account
set display_name = coalesce($2, display_name), clearance = coalesce($3, clearance), roles = coalesce($4, roles),
    deactivated_at = case
      when $5::boolean is null then deactivated_at
      when $5 then null
      else coalesce(deactivated_at, plane_now())
    end,
    access_ended_at = case when $5 is false then plane_now() else access_ended_at end,
    revision = revision + 1, updated_at = plane_now()
where id = $1
