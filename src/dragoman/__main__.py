"""Entry point of `python -m dragoman`, equal to the command `dragoman`."""

from collections import namedtuple

from dragoman.cli.main import main

if __name__ == "__main__":
    try:
        main()
    finally:
        # Python replaces the exit status if an interrupt ended an evaluation inside of a library, such as the import of torch.
        # A further evaluation resets this, and the making of a named tuple is one.
        namedtuple("Reset", ())
