-- Whether anything is due is one look, however many jobs wait for a later time.
create index idx_job_due on job (app, runnable_at) where runnable_at is not null;
drop function if exists claim_jobs(uuid, text[], integer, uuid, uuid[], integer, integer, integer);
drop function if exists find_next_job(text[], uuid, uuid[], integer);
drop function if exists full_orgs(uuid[], integer, integer, integer);
