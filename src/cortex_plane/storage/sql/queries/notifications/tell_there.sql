select notify_mapping($1, $2)
