"""The tools that agents call. Importing this must stay cheap: whoever writes a tool imports it."""
