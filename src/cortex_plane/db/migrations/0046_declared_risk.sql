-- Whether somebody said how risky a tool is, or medium is only assumed: no atlas speaks for the latter.
alter table tool_version add column declares_risk boolean not null default false;
grant update (declares_risk) on tool_version to cortex_app;
alter table external_call add column declares_risk boolean not null default false;
