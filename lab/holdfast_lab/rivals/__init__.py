"""What planners are compared with in benches and tests: exhaustive searches, and other ways to the same figures."""
