select * from reach_approval($1, $2)
