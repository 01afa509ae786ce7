"""What becomes of a pair before it is learnt from: named rules, duplicates, and a page that shows what they dropped."""
