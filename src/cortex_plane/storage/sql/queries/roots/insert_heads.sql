insert into audit_root_head (org_id, root_seq, chain_id, audit_seq, hash)
select $1, $2, h.chain_id, h.seq, h.hash from unnest($3::uuid[], $4::bigint[], $5::bytea[]) h (chain_id, seq, hash)
