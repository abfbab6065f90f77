select sealed from credential_key
