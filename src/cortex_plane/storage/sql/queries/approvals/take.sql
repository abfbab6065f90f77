-- Schedulers pass over what another one acts on. A lock of the row itself would come before its jobs' locks.
select pg_try_advisory_xact_lock(hashtextextended($1::uuid::text, 2))
