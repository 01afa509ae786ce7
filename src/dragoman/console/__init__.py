"""Options, checks of paths and terminal output, which all commands share."""
