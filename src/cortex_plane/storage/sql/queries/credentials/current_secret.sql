select id, sealed from signing_secret where purpose = $1 and retire_at is null
