update channel_connection
set name = coalesce($2, name),
    config = case when $5::text is null then config else config || jsonb_build_object('url', $5) end,
    disabled_at = case
      when $3::boolean is null then disabled_at
      when $3 then null
      else coalesce(disabled_at, plane_now())
    end,
    -- Whoever enables it wants it tried anew, from the first failure on.
    disabled_reason = case when $3 then null else disabled_reason end,
    failing_since = case when $3 then null else failing_since end,
    revision = revision + 1, updated_at = plane_now()
where id = $1 and ($4::integer is null or revision = $4)
returning id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at
