-- What was asked of a job that is held: `pause_source`, `reason`, `by`, `correlation_id`, `hold_by` while it still runs, `paused_at` once
-- it holds. Null where nothing holds it.
alter table job add column pause jsonb;
grant update (pause) on job to cortex_app;
grant select (pause) on job to cortex_claimer;

-- `owner`, `operator` or both; a session that was held before has none, and that is an operator's hold.
alter table session add column held_by text[] not null default '{}';
alter table session add column paused_at timestamptz;
-- Its agent asked to end it: it ends once none of its jobs is open.
alter table session add column end_reason text;
create index idx_session_paused on session (org_id, paused_at) where (paused_at is not null);
update session set paused_at = updated_at where status = 'PAUSED';
