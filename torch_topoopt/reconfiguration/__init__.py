"""Networks whose circuits move while an iteration runs."""
