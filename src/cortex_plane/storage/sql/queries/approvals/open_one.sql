select * from open_approval($1, $2)
