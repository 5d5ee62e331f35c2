"""Client languages, one file each."""
