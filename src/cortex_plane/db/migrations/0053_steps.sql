-- A step of code that declares nothing is settled like a call. Agents that are there already keep what their steps relied on for one
-- release: those may be repeated. The release before makes its agents so as well.
alter table agent add column repeats_steps boolean not null default true;
