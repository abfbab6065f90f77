-- Only the newest works.
delete from identity_code where user_account_id = $1 and purpose = 'sender' and used_at is null
