"""The page about what is compatible with what, and the facts it is made of that the code does not hold."""
