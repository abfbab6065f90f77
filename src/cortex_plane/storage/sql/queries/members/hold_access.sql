-- Whoever makes or ends a credential of this member waits here for the others who do.
select pg_advisory_xact_lock(hashtextextended($1::uuid::text || ':access', 0))
