select id from user_account where 'admin' = any (roles) and deactivated_at is null
order by created_at, id
limit 1
