with made as (
  insert into session (org_id, id, kind, user_account_id, agent_id, title, context, opened_by, context_by)
  values ($1, $2, $3, $4, $5, $6, $7, $8, case when $7::jsonb = '{}' then '{}' else array[$9::uuid] end)
)
insert into session_head (org_id, session_id) values ($1, $2)
