"""`python -m dragoman`, which is the same as `dragoman`."""

from dragoman.cli.main import main

if __name__ == "__main__":
    main()
