select escalate_approval($1, $2, $3)
