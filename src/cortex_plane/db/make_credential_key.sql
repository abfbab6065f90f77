insert into credential_key (sealed) values ($1) on conflict do nothing
