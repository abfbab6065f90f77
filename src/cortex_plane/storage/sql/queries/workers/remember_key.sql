insert into plane_key (fingerprint) values ($1) on conflict do nothing
