-- Calls, intents and outcomes are records now (functions/calls.sql), whoever performs them.
drop function if exists advance_job(
  uuid, uuid, uuid, bigint, bigint, text, bytea, integer, bigint, text, integer, integer, double precision, integer, text, text[],
  text, text[], uuid[], double precision, uuid[], bytea[], text, text, text, double precision, text, text, text, text, integer,
  jsonb, text[], jsonb[], text[], bytea[]);
drop function if exists authorize_call(
  uuid, uuid, uuid, text, bytea, text, text, text, text, text, bytea, boolean, text, text, double precision, text, text,
  text, text, text, double precision, uuid, integer, text, uuid, uuid, uuid, text[], jsonb[], text[], bytea[], jsonb);
drop function if exists intend_call(
  uuid, uuid, text, integer, text, text, double precision, text, text, boolean, uuid, integer, uuid, text[], jsonb[],
  text[], bytea[], jsonb);
drop function if exists settle_call(
  uuid, uuid, uuid, uuid, integer, text, text, text, text, text[], jsonb[], text[], bytea[], jsonb);
-- Deliveries are written down several at a time.
drop function if exists record_delivery(
  uuid, uuid, uuid, integer, boolean, boolean, text, jsonb, jsonb, jsonb, text[], bytea[]);
