"""What has weights: the encoder, the flow, affine maps; loading them and exporting them."""
