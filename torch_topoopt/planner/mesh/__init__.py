"""Planning on a network of rows and columns: what to split, and which server is which."""
