-- Why this address took no mail, from this member's mappings to it; those that they gave up count too.
select m.suppressed_reason from channel_mapping m
where m.org_id = $1 and m.connection_id = $2 and m.channel_user_id = $3 and m.user_account_id = $4
  and m.suppressed_at is not null
order by m.suppressed_at desc limit 1
