"""The gRPC door: it validates, calls one verb and renders."""
