"""Tests of the losses, their registry and their contract."""
