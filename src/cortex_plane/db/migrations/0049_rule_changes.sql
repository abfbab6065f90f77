-- Changes of atlases and policies that wait for a person, and owners of atlases.

-- A request about a change belongs to no job: it has no session, no job and no agent, and every other request has all three.
alter table approval_request alter column session_id drop not null;
alter table approval_request alter column job_id drop not null;
alter table approval_request alter column agent_id drop not null;
alter table approval_request add constraint chk_approval_request_job check
  ((kind = 'change') = (job_id is null) and (kind = 'change') = (session_id is null) and (kind = 'change') = (agent_id is null));
alter table approval_request drop constraint chk_approval_request_kind;
alter table approval_request add constraint chk_approval_request_kind check (kind in ('call', 'uncertain_effect', 'change'));
alter table approval_request add constraint chk_approval_request_change_deadline check ((kind <> 'change') or
  ((deadline is not null) and ((status = 'pending') = (next_action_at is not null))));
create index idx_approval_request_change on approval_request (org_id, tool_name, target) where ((kind = 'change') and
  (status = 'pending'));

-- The file of a change, as it was proposed: a yes to the request puts exactly this in force.
create table rule_change (
  org_id uuid not null,
  approval_id uuid not null,
  source text not null,
  -- What faults in the file are named after.
  name text not null,
  -- SHA-256 of what would be in force: of the canonical manifest, or of the policy file.
  digest text not null,
  -- The version that held when it was proposed; null where none did. Where another one holds, the change was overtaken.
  base text,
  note text,
  -- Who becomes the author of the version: a person, or the key of a program.
  proposed_by text not null,
  proposed_by_id uuid not null,
  primary key (org_id, approval_id),
  constraint fk_rule_change_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint chk_rule_change_digest check (digest ~ '^[a-f0-9]{64}$')
);
alter table rule_change enable row level security;
alter table rule_change force row level security;
create policy tenant on rule_change using (org_id = nullif(current_setting('app.org_id', true), '')::uuid) with check (org_id =
  nullif(current_setting('app.org_id', true), '')::uuid);
grant select, insert on rule_change to cortex_app;

-- To whom an atlas was handed over. An atlas without a row belongs to the author of its first version (the function `atlas_owner`), so
-- that versions from before this migration, and those of processes of the release before, have their owner too.
create table atlas_handover (
  org_id uuid not null,
  atlas_id text not null,
  owner_id uuid,
  team_id uuid,
  handed_over_at timestamptz not null default plane_now(),
  primary key (org_id, atlas_id),
  constraint fk_atlas_handover_owner foreign key (org_id, owner_id) references user_account (org_id, id),
  constraint fk_atlas_handover_team foreign key (org_id, team_id) references team (org_id, id) on delete set null (team_id),
  constraint chk_atlas_handover_one check (num_nonnulls(owner_id, team_id) <= 1)
);
create index idx_atlas_handover_owner on atlas_handover (org_id, owner_id) where (owner_id is not null);
create index idx_atlas_handover_team on atlas_handover (org_id, team_id) where (team_id is not null);
alter table atlas_handover enable row level security;
alter table atlas_handover force row level security;
create policy tenant on atlas_handover using (org_id = nullif(current_setting('app.org_id', true), '')::uuid) with check (org_id =
  nullif(current_setting('app.org_id', true), '')::uuid);
grant select, insert, update (owner_id, team_id, handed_over_at) on atlas_handover to cortex_app;

-- The platform's policies are replaced as a whole, by one function that runs as this role.
grant select, insert, delete on platform_policy to cortex_scheduler;
grant select, update on platform_policy_version to cortex_scheduler;
