"""One module per noun. A route validates, calls one operation and renders."""
