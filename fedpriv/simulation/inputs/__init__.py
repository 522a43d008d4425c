"""The nets' inputs: images, token ids, image-text pairs, and the features of frozen encoders."""
