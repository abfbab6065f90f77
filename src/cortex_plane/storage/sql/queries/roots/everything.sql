select seq, body, hash, key_id, signature from audit_root order by org_id, seq
