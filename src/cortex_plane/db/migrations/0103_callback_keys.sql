-- The calls that a connection asked for are found by their key. The index of all three serves the previous release, too.
create index idx_external_call_callback_key on external_call (org_id, callback_id, key) where (callback_id is not null);
drop index idx_external_call_callback;
