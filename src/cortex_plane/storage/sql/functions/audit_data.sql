-- Reading the bodies of audit entries in SQL. Somebody may have written anything there: what is no JSON, or no id, is null here, and
-- its chain does not verify.
create or replace function entry_body(body bytea) returns jsonb
  language plpgsql stable parallel safe set search_path = public, pg_temp as $$
begin
  return convert_from(body, 'UTF8')::jsonb;
exception when data_exception or untranslatable_character or character_not_in_repertoire then
  return null;
end
$$;

create or replace function id_in(text) returns uuid
  language sql immutable parallel safe
  return case when $1 ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then $1::uuid end;
