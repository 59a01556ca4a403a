"""What Ray has and who is alive; how a process, and the Ray of a run, begin and end."""
