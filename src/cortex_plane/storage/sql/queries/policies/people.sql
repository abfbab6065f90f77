-- Who could decide something: active members, with what they may and where they stand.
select id, display_name, clearance, roles from user_account
where deactivated_at is null and roles <> '{guest}'
