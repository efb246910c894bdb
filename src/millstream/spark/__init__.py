"""Topics as Spark tables and streams."""
