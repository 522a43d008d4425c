"""Text encoders: transformers by name, and how they are trained."""
