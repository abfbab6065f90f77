"""The vendors of channels, each as a server on loopback with its state in memory."""
