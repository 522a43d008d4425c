"""Image-text pairs: pretrained image encoders, and the fusion of both modalities."""
