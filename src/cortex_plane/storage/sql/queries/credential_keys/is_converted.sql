select converted_at is not null from credential_key
