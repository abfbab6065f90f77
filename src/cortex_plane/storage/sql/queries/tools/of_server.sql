-- The newest version of each tool that a server of an app was last known to offer.
select * from (
  select distinct on (name) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
    server, remote_name, implementation, hints
  from tool_version where app = $1
  order by name, published_at desc
) newest where server = $2
