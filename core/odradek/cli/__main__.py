"""`python -m odradek.cli`: the command line of this very interpreter."""

from odradek.cli import main

if __name__ == "__main__":
    main()
