"""Parts of run_harnesses.py."""
