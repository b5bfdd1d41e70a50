"""The commands that show the status and the history of a job."""
