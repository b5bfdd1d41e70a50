"""Creation, lookup, expiry and deletion of savepoints."""
