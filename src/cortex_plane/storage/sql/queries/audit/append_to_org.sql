select org_append($1, $2, $3)
