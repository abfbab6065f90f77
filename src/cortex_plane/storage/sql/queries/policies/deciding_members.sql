-- Which of these could decide something at all.
select id from user_account where id = any ($1) and deactivated_at is null and roles <> '{guest}'
