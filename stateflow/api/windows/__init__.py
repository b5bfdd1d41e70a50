"""Windows of keyed streams: assigners, triggers, evictors, and the operator that evaluates them."""
