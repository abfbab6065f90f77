update notification set taken_by = null, taken_until = null where id = $1 and taken_by = $2
