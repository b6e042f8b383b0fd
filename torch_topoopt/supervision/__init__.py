"""The files by which others see a job: where they lie, how they are read, and what they tell."""
