select coalesce(checkpoint #>> '{memory_context,conversation_summary}', '') as summary,
  coalesce(checkpoint #> '{memory_context,accumulated_facts}', '[]') as facts
from job where id = $1
