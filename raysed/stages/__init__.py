"""Doing it on Ray: members, the mean of teachers, learners, views, embeddings, calibrations."""
