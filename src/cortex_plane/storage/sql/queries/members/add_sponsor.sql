update user_account set sponsors = sponsors || $2::uuid where id = $1 and id <> $2 and not $2 = any (sponsors)
