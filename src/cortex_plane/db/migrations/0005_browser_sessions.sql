-- People in browsers: links that log somebody in once, and the sessions that they open. Of a secret only its SHA-256 is
-- kept.

create table login_link (
  org_id           uuid not null,
  id               uuid not null,
  user_account_id  uuid not null,
  secret_hash      bytea not null,
  -- Whoever made it, by name: what is done with it is on the audit trail under the name of its member.
  issued_by        text not null,
  created_at       timestamptz not null default plane_now(),
  expires_at       timestamptz not null,
  used_at          timestamptz,
  primary key (org_id, id),
  constraint uq_login_link_secret unique (secret_hash),
  constraint fk_login_link_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_login_link_hash check (length(secret_hash) = 32)
);
create index idx_login_link_account on login_link (org_id, user_account_id);

create table browser_session (
  org_id           uuid not null,
  id               uuid not null,
  user_account_id  uuid not null,
  secret_hash      bytea not null,
  created_at       timestamptz not null default plane_now(),
  last_seen_at     timestamptz not null default plane_now(),
  expires_at       timestamptz not null,
  primary key (org_id, id),
  constraint uq_browser_session_secret unique (secret_hash),
  constraint fk_browser_session_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_browser_session_hash check (length(secret_hash) = 32)
);
create index idx_browser_session_account on browser_session (org_id, user_account_id);

-- What an inbox shows as decided lately.
create index idx_approval_request_resolved on approval_request (org_id, resolved_at desc) where resolved_at is not null;

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['login_link', 'browser_session']
  loop
    execute format('alter table %I enable row level security', tenant_table);
    execute format('alter table %I force row level security', tenant_table);
    execute format($policy$
      create policy tenant on %I
        using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
        with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
    $policy$, tenant_table);
    -- A link and a cookie are looked up before their org is known.
    execute format('grant select (org_id, id, secret_hash) on %I to cortex_resolver', tenant_table);
    execute format('create policy resolver on %I for select to cortex_resolver using (true)', tenant_table);
  end loop;
end
$$;

grant select, insert, update (used_at), delete on login_link to cortex_app;
grant select, insert, update (last_seen_at), delete on browser_session to cortex_app;
