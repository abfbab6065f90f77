insert into user_account (org_id, id, display_name, clearance, roles, sponsors) values ($1, $2, $3, $4, $5, $6)
