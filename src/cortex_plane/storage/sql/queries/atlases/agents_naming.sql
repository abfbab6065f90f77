-- The agents whose newest configuration names the atlas.
select a.slug from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where a.status <> 'ARCHIVED' and v.skill_config -> 'atlases' ? $1
order by a.slug
limit $2
