-- The inbox reads the most urgent requests of an org in this order, however many are pending. What has no deadline comes first: as a
-- time, so that a look can continue after a request, and with `case`, because `coalesce` is no condition of an index under row-level
-- security. Only the inbox names the condition on `requested_at`: in a new plane, without statistics, the planner took this index for
-- other queries too, and read everything that is pending.
create index idx_approval_request_urgent on approval_request
  (org_id, (case when deadline is null then '-infinity'::timestamptz else deadline end), requested_at, id)
  where status = 'pending' and requested_at > '-infinity';
