"""Kill the worker at the worst moments and count in the outside world how often each act happened."""
