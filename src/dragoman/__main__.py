"""Entry point of `python -m dragoman`, equal to the command `dragoman`."""

from dragoman.cli.main import main

if __name__ == "__main__":
    main()
