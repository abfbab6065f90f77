select app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain, server, remote_name,
  implementation, hints
from tool_version where app = $1 and name = $2 and digest = $3
