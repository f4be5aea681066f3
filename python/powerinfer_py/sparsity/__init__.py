"""What tools measure and make of a model's activation sparsity."""
