"""Sources and sinks against real files, tables and Spark."""
