"""The interface of an inference model on PyTorch: any model, on a CPU or a GPU."""
