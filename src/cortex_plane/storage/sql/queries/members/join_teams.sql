insert into team_member (org_id, team_id, user_account_id)
select $1, wanted, $2 from unnest($3::uuid[]) as wanted
