"""The pure part: values, state machines and rules. No I/O, no clock, no randomness."""
