"""Types of keys and values: descriptors, serializers, key groups and TTL configuration."""
