"""Carrying a plan out, and showing that it did what it was for."""
