"""What nets are shown: images, token ids, image-text pairs, and the features of frozen encoders."""
