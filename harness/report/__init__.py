"""Everything that is stored, as one HTML page."""
