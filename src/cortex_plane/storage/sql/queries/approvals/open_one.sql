select * from open_approval($1, $2, $3, $4)
