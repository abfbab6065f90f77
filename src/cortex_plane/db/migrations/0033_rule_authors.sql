-- Who applied policies, confirmed a tool or published an atlas, as an identity: the id of a person's account, or of the key of a
-- program, so that the person behind that key is known too.
alter table atlas_version drop constraint fk_atlas_version_account;
drop index idx_atlas_version_account;
alter table tool_confirmation drop constraint fk_tool_confirmation_account;
drop index idx_tool_confirmation_account;
