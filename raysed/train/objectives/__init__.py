"""What members and learners are trained to do, one file each; an objective knows encoders and batches, not Ray."""
