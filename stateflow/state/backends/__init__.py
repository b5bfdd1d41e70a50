"""State backends: ordered bytes by key, their snapshots, and rescaling."""
