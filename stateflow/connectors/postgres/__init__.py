"""The PostgreSQL sink: publishes the rows of a checkpoint and its token in one transaction."""
