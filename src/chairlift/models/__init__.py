"""What a model is, whoever runs it."""
