-- Holds the agent still while a change to it is decided.
select id, revision, config_version from agent where id = $1 or slug = $2 for no key update
