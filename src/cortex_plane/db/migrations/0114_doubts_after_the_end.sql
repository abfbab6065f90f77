-- A call of a session that is over may be settled by a person. Where they say that it did not happen, its keys are free for a new call.
grant update (key) on external_call to cortex_app;
grant delete on external_call_key to cortex_app;
