delete from team_member where user_account_id = $1
