"""Room 6, what hotlap installs: plain objects, each usable alone in a PyTorch loop. Imports no other room."""
