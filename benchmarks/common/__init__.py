"""What every comparison with other programs needs: their environments, what a command costs, tables and ratios."""
