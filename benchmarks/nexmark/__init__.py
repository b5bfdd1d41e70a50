"""The Nexmark benchmark: a generator of its events, its queries in Flink SQL, and a runner of Flink."""
