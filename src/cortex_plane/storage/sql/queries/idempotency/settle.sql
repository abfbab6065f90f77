select settle_once($1, $2, $3, $4, $5)
