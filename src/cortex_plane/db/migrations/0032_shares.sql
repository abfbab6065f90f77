-- Shares per org, jobs that are handed back again and again, and refused decisions that are counted in one row.

-- How often in a row the job was handed back without progress. A finished step sets it to 0.
alter table job add column hand_backs integer not null default 0;
alter table job add constraint chk_job_hand_backs check (hand_backs >= 0);
grant update (hand_backs) on job to cortex_app;
grant select (hand_backs) on job to cortex_claimer;

-- How often the same happened: after the tenth refused decision of a person on a card, one row counts on.
alter table approval_event add column times integer not null default 1;
alter table approval_event add constraint chk_approval_event_times check (times >= 1);
grant update (times) on approval_event to cortex_app;

-- The scheduler deletes budgets of requests, of any org, that have long been full again.
grant select (org_id, subject_id, refilled_at), delete on request_budget to cortex_scheduler;
create policy scheduler on request_budget for select to cortex_scheduler using (true);
create policy scheduler_deletes on request_budget for delete to cortex_scheduler using (true);

-- They take or return more now, and are made anew with the other functions.
drop function if exists claim_jobs(uuid, text[], integer, uuid);
drop function if exists find_next_job(text[], uuid);
drop function if exists find_leased(uuid);
drop function if exists release_job(uuid, uuid, uuid, bigint, text, bytea);
