update channel_connection
set name = coalesce($2, name),
    disabled_at = case
      when $3::boolean is null then disabled_at
      when $3 then null
      else coalesce(disabled_at, plane_now())
    end,
    revision = revision + 1, updated_at = plane_now()
where id = $1 and ($4::integer is null or revision = $4)
returning id, channel_type, name, disabled_at, revision, created_at, updated_at
