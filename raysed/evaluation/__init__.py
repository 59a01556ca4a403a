"""How good embeddings are: graded sentence pairs (`sts`) and the shape of the space (`analysis`)."""
