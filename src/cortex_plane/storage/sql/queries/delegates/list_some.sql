select u.id, u.display_name from user_account u
where u.deactivated_at is null and u.roles <> '{guest}'
  and ($1::uuid is null or u.id <> $1) and ($2::text is null or u.display_name = $2)
order by u.display_name, u.id
limit $3
