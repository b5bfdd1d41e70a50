"""State servers: they serve the committed state of a job to queries over HTTP, and the client for them."""
