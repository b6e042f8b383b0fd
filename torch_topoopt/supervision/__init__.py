"""The files through which other processes observe a job: their paths, readers and evaluation."""
