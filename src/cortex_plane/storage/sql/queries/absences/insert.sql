insert into member_absence (org_id, id, user_account_id, delegate_id, starts_at, ends_at, reason, created_by)
values ($1, $2, $3, $4, $5, $6, $7, $8)
