select has_proven_channel($1, $2, 'infinity')
