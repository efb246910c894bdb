"""File formats, bytes ↔ values: WAL frames, segments, indexes, snapshots. Opens no file, logs nothing."""
