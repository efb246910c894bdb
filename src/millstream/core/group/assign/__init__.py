"""Server-side assignors of consumer groups: who is to have which partition. Pure functions.

``spec`` says what an assignor is given and what it gives, ``ranges`` is ``range``, ``uniform`` is ``uniform`` for
members that all subscribe to the same topics, ``balance`` the same for those that do not.
"""
