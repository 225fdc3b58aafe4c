"""What the page under web/ is given: each module makes the files of one subject, and writes nothing."""
