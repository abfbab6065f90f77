-- What is known of tools: versions that workers at the database published, for all orgs (`org_id` is null), and those of the org's remote
-- workers. A version that both published stands here once.
drop view if exists known_tool;
create view known_tool with (security_invoker = true) as
  select null::uuid as org_id, t.app, t.name, t.digest, t.description, t.parameters, t.read_only, t.risk, t.timeout_seconds, t.on_uncertain,
    t.server, t.remote_name, t.implementation, t.hints, t.declares_risk, t.published_at
  from tool_version t
  union all
  select o.org_id, o.app, o.name, o.digest, o.description, o.parameters, o.read_only, o.risk, o.timeout_seconds, o.on_uncertain,
    o.server, o.remote_name, o.implementation, o.hints, o.declares_risk, o.published_at
  from org_tool_version o
  where not exists (select from tool_version t where t.app = o.app and t.name = o.name and t.digest = o.digest);
grant select on known_tool to cortex_app;

-- The highest risk that is known of a tool: as each app published it last, for all orgs or for this one, or as a steward of the org
-- confirmed that version. Null where nobody published it.
create or replace function known_risk(p_org uuid, p_tool text) returns text
  language sql stable set search_path = public, pg_temp as $$
  select (array['low', 'medium', 'high', 'critical'])[
    max(array_position(array['low', 'medium', 'high', 'critical'], coalesce(c.risk, v.risk)))]
  from (
    select distinct on (t.app, t.org_id) t.app, t.name, t.digest, t.risk from known_tool t
    where t.name = p_tool and (t.org_id is null or t.org_id = p_org) order by t.app, t.org_id, t.published_at desc) v
  left join tool_confirmation c on c.org_id = p_org and c.app = v.app and c.tool_name = v.name and c.digest = v.digest
    and c.revoked_at is null
$$;
