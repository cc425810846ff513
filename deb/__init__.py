"""Builds the package that a box installs: one folder with everything in it, and a .deb around it."""
