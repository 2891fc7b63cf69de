"""Pictures: colours, matplotlib figures, and what encoders make of images."""
