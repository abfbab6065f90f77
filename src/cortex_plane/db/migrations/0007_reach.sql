-- Approvals that need more than one person, or another one: quorum, escalation, delegation, absence.
--
-- `approvers` is always who may decide now: an escalation and a delegation add to it. Whoever delegated is in `delegated`
-- and decides no more, so that one person's part never becomes two votes.

alter table policy
  add column quorum jsonb,
  add column escalation_seconds integer,
  add column escalate_to jsonb,
  add column standing boolean,
  add constraint chk_policy_escalation check (escalation_seconds between 0 and 604800);
alter table platform_policy
  add column channels text[],
  add column quorum jsonb,
  add column escalation_seconds integer,
  add column escalate_to jsonb,
  add column standing boolean,
  add constraint chk_platform_policy_escalation check (escalation_seconds between 0 and 604800);

alter table approval_request
  add column quorum jsonb not null default '{"votes": 1, "roles": []}',
  -- Who is asked besides, level by level, and when.
  add column escalations jsonb not null default '[]',
  add column escalate_at timestamptz[] not null default '{}',
  add column delegated uuid[] not null default '{}',
  add column channels text[],
  add column standing boolean not null default false,
  add column action text,
  add column details jsonb,
  add constraint chk_approval_request_escalations check (
    jsonb_array_length(escalations) = cardinality(escalate_at) and escalation_level <= cardinality(escalate_at));

alter table approval_event
  drop constraint chk_approval_event_type,
  add constraint chk_approval_event_type check (event_type in (
    'requested', 'joined', 'dispatched', 'delegated', 'voted', 'edited', 'approved', 'denied', 'expired', 'cancelled',
    'reminded', 'escalated', 'answered', 'refused', 'undeliverable', 'channel_duplicate', 'channel_conflict'));

-- One hop each; a chain is several rows. People keep their names here, whatever becomes of their accounts.
create table approval_delegation (
  org_id          uuid not null,
  id              bigint generated always as identity,
  approval_id     uuid not null,
  from_member_id  uuid not null,
  from_member     text not null,
  to_member_id    uuid not null,
  to_member       text not null,
  to_clearance    integer not null,
  reason          text,
  automatic       boolean not null,
  created_at      timestamptz not null,
  primary key (org_id, approval_id, id),
  -- Nobody hands on what they do not have any more.
  constraint uq_approval_delegation_from unique (org_id, approval_id, from_member_id),
  constraint fk_approval_delegation_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_approval_delegation_from foreign key (org_id, from_member_id) references user_account (org_id, id),
  constraint fk_approval_delegation_to foreign key (org_id, to_member_id) references user_account (org_id, id),
  constraint chk_approval_delegation_self check (from_member_id <> to_member_id)
);
create index idx_approval_delegation_from on approval_delegation (org_id, from_member_id);
create index idx_approval_delegation_to on approval_delegation (org_id, to_member_id);

-- Out of office: what is asked of somebody in this time goes to somebody else.
create table member_absence (
  org_id           uuid not null,
  id               uuid not null,
  user_account_id  uuid not null,
  delegate_id      uuid not null,
  starts_at        timestamptz not null,
  ends_at          timestamptz not null,
  reason           text,
  cancelled_at     timestamptz,
  created_by       text not null,
  created_at       timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint fk_member_absence_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_member_absence_delegate foreign key (org_id, delegate_id) references user_account (org_id, id),
  constraint chk_member_absence_span check (starts_at < ends_at),
  constraint chk_member_absence_self check (user_account_id <> delegate_id)
);
create index idx_member_absence_account on member_absence (org_id, user_account_id, ends_at) where cancelled_at is null;
create index idx_member_absence_delegate on member_absence (org_id, delegate_id);
create index idx_member_absence_list on member_absence (org_id, created_at desc, id desc);

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['approval_delegation', 'member_absence']
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

grant select, insert on approval_delegation to cortex_app;
grant select, insert, update (cancelled_at) on member_absence to cortex_app;
grant update (approvers, escalation_level, delegated, channels_dispatched) on approval_request to cortex_app;
-- A yes may become a no while others are still to be heard.
grant update (decision, reason, channel, created_at) on approval_vote to cortex_app;

-- It returns more now.
drop function if exists open_approval(uuid, uuid);

-- Votes and hops are heard of as decisions are.
drop index idx_event_approvals;
create index idx_event_approvals on event (org_id, created_at) where type in (
  'approval_requested', 'approval_joined', 'approval_edited', 'approval_decided', 'approval_expired',
  'approval_cancelled', 'approval_reminded', 'approval_escalated', 'approval_voted', 'approval_delegated', 'effect_settled');
