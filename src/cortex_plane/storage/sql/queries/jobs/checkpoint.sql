select checkpoint from job where id = $1
