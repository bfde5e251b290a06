"""One module per API, with the API's key in its name; see `odradek.broker.dispatch`.

Each exports `handle(caller, request, version)` and opens with the versions it serves, what it
does, and what it leaves out and why.
"""
