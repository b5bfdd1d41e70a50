"""Programs that run one competitor of the throughput benchmark each, in a process of its own."""
