"""File formats, bytes ↔ values: WAL frames, segments, indexes, snapshots. It opens no file and logs nothing."""
