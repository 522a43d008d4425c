"""The clients' answers in a round: they are collected and checked as they arrive; some come late, or never."""
