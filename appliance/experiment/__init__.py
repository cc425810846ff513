"""Experiments: who gets which prompt version, what was measured, and whether it helped."""
