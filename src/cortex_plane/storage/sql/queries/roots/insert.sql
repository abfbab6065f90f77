-- No row where somebody else made this one first.
insert into audit_root (org_id, seq, previous, body, hash, key_id, signature, chains, snapshot, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::pg_snapshot, $10)
on conflict (org_id, seq) do nothing
returning seq
