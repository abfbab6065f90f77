-- The highest risk that is known of a tool: as each app published it last, or as a steward of the org confirmed that version.
-- Null where nobody published it.
create or replace function known_risk(p_org uuid, p_tool text) returns text
  language sql stable set search_path = public, pg_temp as $$
  select (array['low', 'medium', 'high', 'critical'])[
    max(array_position(array['low', 'medium', 'high', 'critical'], coalesce(c.risk, v.risk)))]
  from (
    select distinct on (t.app) t.app, t.name, t.digest, t.risk from tool_version t
    where t.name = p_tool order by t.app, t.published_at desc) v
  left join tool_confirmation c on c.org_id = p_org and c.app = v.app and c.tool_name = v.name and c.digest = v.digest
    and c.revoked_at is null
$$;
