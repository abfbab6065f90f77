-- The id of a checkpoint, by which pauses name it.
create or replace function checkpoint_key(p_checkpoint jsonb) returns text
  language sql immutable parallel safe
  return p_checkpoint ->> 'checkpoint_id';

-- The checkpoint of a job as it was sealed: the stored one with the memory that is kept beside it. One that is damaged, or whose memory
-- is, stays as it is, for whoever checks it.
create or replace function whole_checkpoint(p_checkpoint jsonb, p_memory jsonb) returns jsonb
  language sql immutable parallel safe
  return case
    when p_memory is null or jsonb_typeof(p_checkpoint #> '{memory_context,working_data}') is distinct from 'object'
      or jsonb_typeof(p_memory -> 'working_data') is distinct from 'object' then p_checkpoint
    else jsonb_set(p_checkpoint, '{memory_context}', (p_checkpoint -> 'memory_context') || p_memory
      || jsonb_build_object('working_data', (p_checkpoint #> '{memory_context,working_data}') || (p_memory -> 'working_data')))
  end;
