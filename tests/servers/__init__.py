"""Storage servers from package registries, which tests start on loopback and stop by their process."""
