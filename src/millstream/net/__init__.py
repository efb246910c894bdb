"""Sockets: bytes in, frames out to whoever handles them, and ordered answers back."""
