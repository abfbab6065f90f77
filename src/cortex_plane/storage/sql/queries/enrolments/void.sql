-- Only the newest works, and what is over goes with it.
delete from enrolment_code where user_account_id = $1 and (used_at is null or expires_at < plane_now() - interval '1 day')
returning id
