"""One process per core: how it starts (`process`), runs (`reactor`), talks to its siblings (`ring`, `mailbox`) and is
watched (`stall`).
"""
