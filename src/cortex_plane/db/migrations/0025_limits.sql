-- How many requests a key and a person may still make, shared by all processes. They take tokens in batches, so that a request
-- writes nothing. Unlogged: what is lost in a crash is a few seconds of somebody's budget.
create unlogged table request_budget (
  org_id       uuid not null,
  -- A key, or a person. Nothing refers to them: a row outlives its key by nothing but its own size.
  subject_id   uuid not null,
  tokens       double precision not null,
  refilled_at  timestamptz not null default plane_now(),
  primary key (org_id, subject_id),
  constraint fk_request_budget_org foreign key (org_id) references org (id),
  constraint chk_request_budget_tokens check (tokens >= 0)
);
alter table request_budget enable row level security;
alter table request_budget force row level security;
create policy tenant on request_budget
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);
grant select, insert, update on request_budget to cortex_app;
