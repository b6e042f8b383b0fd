"""The figures: which cells they need, and what is drawn and compared."""
