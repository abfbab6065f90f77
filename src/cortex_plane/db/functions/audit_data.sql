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

-- A time that programs can read: PostgreSQL has times that they cannot hold, and whoever writes one must not keep others from verifying.
create or replace function readable_time(timestamptz) returns timestamptz
  language sql immutable parallel safe
  return case when $1 < '0001-01-02 00:00Z' or $1 > '9999-12-30 00:00Z' then '9999-12-30 00:00Z' else $1 end;
