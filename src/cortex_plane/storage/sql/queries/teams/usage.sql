select (select count(*) from agent where team_id = $1) as agents,
  (select count(*) from team where parent_id = $1) as teams
