"""Values that every layer shares. They have no behaviour."""
