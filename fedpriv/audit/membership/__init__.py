"""Who was trained on, and with which labels: candidates, scores, epsilon, and what may be said."""
