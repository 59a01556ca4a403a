"""Text in; token tables and batches out."""
