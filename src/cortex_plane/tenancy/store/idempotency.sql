-- name: claim
select claim_once($1, $2, $3, $4, $5)


-- name: settle
select settle_once($1, $2, $3, $4, $5)
