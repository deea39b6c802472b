"""Speed: workloads, peers, ceilings and the report of `make bench`. Nothing here is imported by the rest."""
