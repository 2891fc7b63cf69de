"""Export: an encoder, and a client's head, as ONNX files that need no PyTorch."""
