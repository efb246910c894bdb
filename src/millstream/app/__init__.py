"""The composition root: the only package that knows every part and wires them together."""
