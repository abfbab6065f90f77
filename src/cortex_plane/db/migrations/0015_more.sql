-- A write of an attempt may hold more than the rows of a step: advance_job takes one argument more, and is made anew with the
-- other functions.
drop function if exists advance_job(
  uuid, uuid, uuid, bigint, bigint, text, bytea, integer, bigint, text, integer, integer, double precision, integer, text,
  text[], text, text[], uuid[], double precision, uuid[], bytea[], text, text, text, double precision, text, text, text,
  text, integer, text[], jsonb[], text[], bytea[]);
