"""Requests to a job's run: the mailbox in the job root, and the client of a requester."""
