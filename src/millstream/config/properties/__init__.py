"""The settings of a node, one file per subject. ``millstream.config.settings`` combines them."""
