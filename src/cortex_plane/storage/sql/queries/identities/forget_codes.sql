-- What is over and a day old, so that the table stays small.
delete from identity_code where user_account_id = $1 and expires_at < plane_now() - interval '1 day'
