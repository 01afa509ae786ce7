"""The paper's tables, run at any scale and printed beside the printed ones."""
