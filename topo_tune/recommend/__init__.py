"""6: launches and trace -> Recommendation."""
