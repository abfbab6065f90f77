select count(*) from member_absence
where user_account_id = $1 and cancelled_at is null and starts_at < $3 and ends_at > $2
