update credential_key set sealed = $1
