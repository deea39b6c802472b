"""Speed: workloads, peers, ceilings and the report of `make bench`. Of the rest only the command line knows of it."""
