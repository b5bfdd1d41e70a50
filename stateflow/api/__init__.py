"""What users write and implement: functions, streams, sources, sinks. Importing it starts nothing."""
