select provider, last_characters, set_by, created_at, updated_at from model_key order by provider
