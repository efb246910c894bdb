"""What an operator sees: `table` declares every metric, `metrics` counts, `render` shows, `log` writes lines."""
