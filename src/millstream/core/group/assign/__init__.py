"""Server-side assignors of consumer groups. Pure functions.

``spec`` defines their input and output. ``ranges`` is the assignor ``range``; ``uniform`` is the assignor ``uniform``
for members with equal subscriptions, ``balance`` for members with different ones.
"""
