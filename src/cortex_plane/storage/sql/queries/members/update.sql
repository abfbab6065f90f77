update user_account
set display_name = coalesce($3, display_name), clearance = coalesce($4, clearance), roles = coalesce($5, roles),
    deactivated_at = case
      when $6::boolean is null then deactivated_at
      when $6 then null
      else coalesce(deactivated_at, plane_now())
    end,
    revision = revision + 1, updated_at = plane_now()
where id = $1 and ($2::integer is null or revision = $2)
returning id
