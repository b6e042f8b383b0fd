"""What a rank runs: the process group, how ranks meet, and what they count."""
