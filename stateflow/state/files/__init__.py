"""State files on a host: cache, eviction and uploads."""
