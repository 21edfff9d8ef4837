"""What computes the steps."""
