-- Compressed: a checkpoint of a usual size (4 KB, most of it the log of the last steps) then fits into the row of its job and
-- needs no rows of its own, which were half of what a step wrote to the log.
alter table job alter column checkpoint set storage extended;
