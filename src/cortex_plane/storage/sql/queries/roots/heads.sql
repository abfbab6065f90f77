-- Every head that a root covers, in the order of the chains, and in each of them in the order of the roots.
select root_seq, chain_id, audit_seq as seq, hash from audit_root_head order by org_id, chain_id, root_seq
