"""Models: encoders, teachers and calibrations; loading and exporting them."""
