-- Why a policy is there, in its steward's words: shown to whoever decides, and to the agent where it denies.
alter table policy add column reason text constraint chk_policy_reason check (char_length(reason) between 1 and 500);
alter table platform_policy add column reason text constraint chk_platform_policy_reason check (char_length(reason) between 1 and 500);
