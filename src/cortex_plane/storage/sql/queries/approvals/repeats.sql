select call_repeats($1, $2)
