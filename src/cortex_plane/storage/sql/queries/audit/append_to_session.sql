select session_append($1, $2, 0, $3, $4, $5, $6, $7, $8)
