select bind_atlases($1, $2, $3, $4)
