-- Proof that stands outside of the database: signing keys, receipts of decisions, and signed roots over all audit chains.

-- Keys ------------------------------------------------------------------------------------------------------
-- Old keys stay: what they signed stays valid. The private key is sealed with the master key, so that a row which somebody
-- put here does not open, and what it signed is not believed.

create table signing_key (
  org_id      uuid not null references org (id),
  id          uuid not null,
  public_key  bytea not null,
  sealed      bytea not null,
  created_at  timestamptz not null default plane_now(),
  retired_at  timestamptz,
  primary key (org_id, id),
  constraint chk_signing_key_public check (length(public_key) = 32)
);
create unique index uq_signing_key_active on signing_key (org_id) where retired_at is null;

-- Receipts --------------------------------------------------------------------------------------------------
-- Written by the transaction that decides, never changed. A call that a person approved is not sent without its own.

create table approval_receipt (
  org_id       uuid not null,
  approval_id  uuid not null,
  key_id       uuid not null,
  body         bytea not null,
  signature    bytea not null,
  created_at   timestamptz not null,
  primary key (org_id, approval_id),
  constraint fk_approval_receipt_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_approval_receipt_key foreign key (org_id, key_id) references signing_key (org_id, id),
  constraint chk_approval_receipt_signature check (length(signature) = 64)
);
create index idx_approval_receipt_key on approval_receipt (org_id, key_id);

-- Roots -----------------------------------------------------------------------------------------------------
-- What has been appended since a root is found by transaction and not by time: whatever its snapshot could not see. Clocks
-- may stand still, and a commit may take its time; neither loses a chain.

alter table audit_entry add column xid xid8;
alter table audit_entry alter column xid set default pg_current_xact_id();
create index idx_audit_entry_xid on audit_entry (org_id, xid);

create table audit_root (
  org_id      uuid not null,
  seq         bigint not null,
  previous    bytea not null,
  body        bytea not null,
  hash        bytea not null,
  key_id      uuid not null,
  signature   bytea not null,
  -- How many chains this and all earlier roots cover together.
  chains      integer not null,
  -- Everything that this snapshot shows is covered.
  snapshot    pg_snapshot,
  created_at  timestamptz not null,
  primary key (org_id, seq),
  constraint fk_audit_root_key foreign key (org_id, key_id) references signing_key (org_id, id),
  constraint chk_audit_root_seq check (seq > 0),
  constraint chk_audit_root_lengths check (length(previous) = 32 and length(hash) = 32 and length(signature) = 64)
);
create index idx_audit_root_key on audit_root (org_id, key_id);

-- The heads that a root covers: the chains that grew since the one before it.
create table audit_root_head (
  org_id     uuid not null,
  root_seq   bigint not null,
  chain_id   uuid not null,
  audit_seq  bigint not null,
  hash       bytea not null,
  primary key (org_id, chain_id, root_seq),
  constraint fk_audit_root_head_root foreign key (org_id, root_seq) references audit_root (org_id, seq),
  constraint chk_audit_root_head_hash check (length(hash) = 32)
);
create index idx_audit_root_head_root on audit_root_head (org_id, root_seq);

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['signing_key', 'approval_receipt', 'audit_root', 'audit_root_head']
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

grant select, insert, update (retired_at) on signing_key to cortex_app;
grant select, insert on approval_receipt, audit_root, audit_root_head to cortex_app;

-- cortex_scheduler finds the orgs that need a root. It sees when, and nothing of what.
grant select (id) on org to cortex_scheduler;
grant select (org_id, xid) on audit_entry to cortex_scheduler;
grant select (org_id, seq, snapshot, created_at) on audit_root to cortex_scheduler;
create policy scheduler on org for select to cortex_scheduler using (true);
create policy scheduler on audit_entry for select to cortex_scheduler using (true);
create policy scheduler on audit_root for select to cortex_scheduler using (true);

-- They return more now, and are made anew with the other functions.
drop function if exists job_past(uuid, uuid, uuid, bigint, boolean);
drop function if exists close_approval(
  uuid, uuid, integer, integer, text, text, bytea, uuid, text, text, text, text, text, jsonb, double precision, jsonb, uuid[],
  jsonb, text[], uuid[], jsonb[], text[], bytea[]);
