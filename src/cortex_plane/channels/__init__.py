"""Ways to reach people. Each is one class that implements the port `Channel`."""
