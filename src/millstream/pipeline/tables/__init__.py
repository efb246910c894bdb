"""Tables that a pipeline writes to: Delta, Iceberg and plain Parquet behind one interface.

``table`` says what every table promises, ``open_table`` finds the kind. What a commit is, is the table format's affair;
what it must carry is the same for all: the record that says which batch of which query it was.
"""
