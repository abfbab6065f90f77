select policies_version($1)
