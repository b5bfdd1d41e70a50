"""Time to live of state entries: expiry and its index, and the removal of expired entries."""
