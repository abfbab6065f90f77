-- Policies: which calls are allowed, denied, or need a person.
--
-- An org's rows are applied as one file and kept as one version; nothing of a version ever changes. The platform's rows
-- belong to no org and are the migrating login's to write: every org reads them, and is limited by them.

alter table org add column policy_version bigint not null default 0;

create table policy_version (
  org_id         uuid not null references org (id),
  version        bigint not null,
  source         text not null,
  digest         text not null,
  rows           integer not null,
  note           text,
  applied_by     text not null,
  applied_by_id  uuid,
  created_at     timestamptz not null default plane_now(),
  primary key (org_id, version),
  constraint chk_policy_version_counts check (version > 0 and rows >= 0),
  constraint chk_policy_version_digest check (digest ~ '^[a-f0-9]{64}$')
);
-- Version 0 is the org without any row of its own, so the newest version is no foreign key.

-- A team is named and not referred to: what was applied stays readable after the team is gone.
create table policy (
  org_id              uuid not null,
  version             bigint not null,
  position            integer not null,
  level               text not null,
  team_id             uuid,
  team                text,
  name                text not null,
  action_type         text not null,
  target              text not null,
  effect              text not null,
  condition           text,
  required_clearance  integer,
  template            text,
  timeout_seconds     integer,
  reminder_seconds    integer,
  approvers           jsonb,
  on_deny             text,
  self_approval       boolean,
  final               boolean not null,
  channels            text[],
  primary key (org_id, version, position),
  constraint fk_policy_version foreign key (org_id, version) references policy_version (org_id, version),
  constraint chk_policy_level check (
    (level = 'org' and team_id is null and team is null) or (level = 'team' and team_id is not null and team is not null)),
  constraint chk_policy_effect check (effect in ('allow', 'deny', 'requires_approval')),
  constraint chk_policy_template check (template in ('dev_only', 'dev_review', 'full_pipeline', 'critical_path')),
  constraint chk_policy_on_deny check (on_deny in ('fail', 'continue')),
  constraint chk_policy_clearance check (required_clearance between 0 and 1000),
  constraint chk_policy_times check (
    timeout_seconds between 1 and 604800 and reminder_seconds between 0 and 604800)
);

create table platform_policy (
  position            integer primary key,
  name                text not null,
  action_type         text not null default 'tool_call',
  target              text not null,
  effect              text not null,
  condition           text,
  required_clearance  integer,
  template            text,
  timeout_seconds     integer,
  reminder_seconds    integer,
  approvers           jsonb,
  on_deny             text,
  self_approval       boolean,
  final               boolean not null default false,
  constraint uq_platform_policy unique (action_type, target, name),
  constraint chk_platform_policy_effect check (effect in ('allow', 'deny', 'requires_approval')),
  constraint chk_platform_policy_template check (
    template in ('dev_only', 'dev_review', 'full_pipeline', 'critical_path')),
  constraint chk_platform_policy_on_deny check (on_deny in ('fail', 'continue')),
  constraint chk_platform_policy_clearance check (required_clearance between 0 and 1000),
  constraint chk_platform_policy_times check (
    timeout_seconds between 1 and 604800 and reminder_seconds between 0 and 604800)
);

-- Raised by a trigger with every change to the platform's rows.
create table platform_policy_version (
  singleton  boolean primary key default true,
  version    bigint not null,
  constraint chk_platform_policy_version_singleton check (singleton)
);
insert into platform_policy_version (version) values (1);

-- Whatever may do lasting harm is decided by somebody else than the person who asked for it. Everything below that falls
-- to the default, so that a developer alone can approve their own calls.
insert into platform_policy (position, name, target, condition, effect, template, required_clearance, final)
values (1, 'critical-needs-approval', '*', 'risk == "critical"', 'requires_approval', 'critical_path', 0, true);

-- What a request demands for its own job: written once, with the job.
alter table job add column policies jsonb;

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['policy_version', 'policy']
  loop
    execute format('alter table %I enable row level security', tenant_table);
    execute format('alter table %I force row level security', tenant_table);
    execute format($policy$
      create policy tenant on %I
        using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
        with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
    $policy$, tenant_table);
  end loop;
end
$$;

grant select, insert on policy_version, policy to cortex_app;
grant select on platform_policy, platform_policy_version to cortex_app;
