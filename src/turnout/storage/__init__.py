"""How bytes reach a disk: files, locks, transactions, and encodings with checksums."""
