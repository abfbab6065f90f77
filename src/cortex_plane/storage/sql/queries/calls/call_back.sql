update external_call set callback_id = $2 where call_id = $1
