-- What a step writes stays in its row, compressed where it is large. Moved out of the row, it was written again with each update; and a
-- column that may be moved out is, before others are compressed, however small it is. Rows above 8 KB are moved out as before.
alter table tool_call alter column tool_name set storage main, alter column tool_digest set storage plain,
  alter column arguments set storage main, alter column input_hash set storage plain, alter column on_uncertain set storage main,
  alter column status set storage main, alter column result set storage main, alter column error set storage main,
  alter column settled_by set storage main, alter column verdict set storage main, alter column rule set storage main;
alter table job alter column kind set storage main, alter column status set storage main, alter column payload set storage main,
  alter column error_message set storage main, alter column app set storage main, alter column checkpoint set storage main,
  alter column checkpoint_mac set storage plain, alter column holds set storage main, alter column cancel_reason set storage main,
  alter column result set storage main, alter column policies set storage main, alter column pause set storage main;
