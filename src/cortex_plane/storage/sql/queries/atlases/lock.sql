-- Those who change one atlas take turns, and nobody else waits.
select pg_advisory_xact_lock(hashtextextended('atlas ' || $1::uuid::text || ' ' || $2, 0))
