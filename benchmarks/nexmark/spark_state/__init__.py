"""What Spark SQL cannot do in a query of Nexmark: functions with state over the result of a file of ``spark_sql``."""
