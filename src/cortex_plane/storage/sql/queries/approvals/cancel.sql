select * from cancel_approvals($1, $2, $3)
