"""Processes that are struck before or after a step: a method that a test names, at one of its calls in a process."""

import functools
import importlib
import os


def edges(steps):
    """Every step of ``steps``, methods by the path of their class, with both of its edges."""
    return [(name, step, edge) for name in steps for step in steps[name] for edge in ("before", "after")]


def plant(name, step, edge, call, struck_by):
    """Have this process send itself a signal at a call of a step, counted from 0."""
    module, _, kind = name.rpartition(".")
    owner = getattr(importlib.import_module(module), kind)
    method, left = getattr(owner, step), [call]

    @functools.wraps(method)
    def struck(*given, **named):
        strikes = left[0] == 0
        left[0] -= 1
        if strikes and edge == "before":
            os.kill(os.getpid(), struck_by)
        done = method(*given, **named)
        if strikes and edge == "after":
            os.kill(os.getpid(), struck_by)
        return done

    setattr(owner, step, struck)
