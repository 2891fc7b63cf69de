"""A classifier for one's own photos on an exported encoder, without PyTorch.

Only fitting needs scikit-learn; predicting does not load it.
"""
