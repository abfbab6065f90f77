-- The newest request that this call belongs to.
select i.approval_id from approval_invocation i where i.call_id = $1 order by i.created_at desc limit 1
