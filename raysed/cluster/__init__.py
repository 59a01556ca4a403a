"""What Ray has, and who is alive."""
