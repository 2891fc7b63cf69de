"""Changes of updates before they are sent: transforms (clip, noise, rounding) and attacks."""
