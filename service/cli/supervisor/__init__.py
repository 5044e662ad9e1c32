"""Runs the processes of a small installation: starts them in order, restarts them, and leaves none behind."""
