"""Commands about the tables of a job."""
