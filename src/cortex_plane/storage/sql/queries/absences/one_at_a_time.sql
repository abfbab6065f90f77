-- Two absences of different people can close a circle together, so that an org makes one at a time.
select pg_advisory_xact_lock(hashtextextended($1::uuid::text, 3))
